"""The rig: the real servers and the instruments that the tests and benchmarks of Onward use.

    postgres    a real PostgreSQL, started, stopped, crashed and restarted at will
    proxy       a TCP proxy in front of it that loses connections, answers and time
    wire        what the proxy understands of the database's wire protocol
    pgbouncer   a real PgBouncer in front of it
    daemon      what the starters of brokers share
    valkey      a real Valkey, the open Redis
    nats        a real NATS server with JetStream
    kafka       a real Kafka, one node
    rabbitmq    a real RabbitMQ, one node
    processes   Python child processes that can be frozen and killed
    ledger      a file in which many processes note what they did to the world
    server      how the servers above are started: never as root, never outliving us

Nothing here knows Onward.
"""
