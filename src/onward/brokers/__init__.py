"""Brokers: events of tasks go out to Redis, NATS, Kafka and RabbitMQ (`Onward.publish`)."""
