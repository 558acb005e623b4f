"""The rig: the real servers and the instruments that the tests and benchmarks of Onward use.

    postgres    a real PostgreSQL, started, stopped, crashed and restarted at will
    proxy       a TCP proxy in front of it that loses connections, answers and time
    wire        what the proxy understands of the database's wire protocol
    pgbouncer   a real PgBouncer in front of it
    valkey      a real Valkey, the open Redis
    etcd        a real etcd
    nats        a real NATS server with JetStream
    kafka       a real Kafka, one node
    rabbitmq    a real RabbitMQ, one node
    cadence     a real Cadence, one process, built with Go
    processes   Python child processes that can be frozen and killed
    ledger      a file in which many processes note what they did to the world
    base        the base of all servers: start, stop, kill, freeze, restart on the same port and data
    server      how a process is started: not as root where the program refuses that, never outliving us
    install     programs from PyPI and npm, fetched once into .cache/

Nothing here knows Onward.
"""
