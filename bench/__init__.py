"""The benchmark: Onward, the bare limits of the machine, and the neighbours, in one sitting on one machine.

    python -m bench                     the bare limits and Onward, on both stores
    python -m bench --peers             the neighbours as well (each in an environment of its own under .bench/)
    python -m bench --only W3 --quick   one workload, a tenth of the work, to see whether a change helped

    python -m bench growth              what things cost in a database that has grown (bench/growth.py)
    python -m bench events              how fast events of tasks go to brokers (bench/events.py)
    python -m bench intake              how fast messages of brokers become tasks (bench/intake.py)
    python -m bench bell                pick-up behind PgBouncer, with and without a bell (bench/bell.py)
    python -m bench frameworks          what a step of an agent framework costs (bench/frameworks.py)
    python -m bench processes           what a second worker process is worth (bench/processes.py)
    python -m bench hostile             what one tenant costs another (bench/hostile.py)

The workloads, the same for everybody; bodies do nothing, so that the engine's own cost shows:

    W1  submit tasks one by one, and in batches                             tasks/s until the call returns, durable
    W2  drain 50,000 waiting tasks with one and with two processes          tasks/s, first body to last durable row
    W3  200 tasks of 20 steps at once, one process                          steps/s, first body to last task durably done
    W4  idle system: submit to first body in another process (pick-up);     ms
        a task of ten steps, submit to its result in the caller's hands     ms
    W5  kill -9 with 100 tasks of 10 steps x 0.2 s half done, a new         s from its start to all done; and how many
        worker at once                                                      finished steps ran again
        Onward also: a worker that already runs takes over                  s from the kill to the first and last going on
    W6  worker memory with 1,000 (Onward also 100,000) tasks waiting        MB more than idle
    W7  an agent's conversation of 300 turns, 100 kB a tool output          ms for a slice, and to go on at turn 300 after a
        (Onward alone)                                                      kill -9; MB of memory; bytes
    W8  100 clients that follow 10 tasks over a server, a worker apart      ms from the end of a step to each client
        (Onward alone)
    W9  POST /api/tasks, 32 connections, beside an empty Starlette          requests/s, all of them durable
        handler with one INSERT (Onward alone)

`measure` holds the words and the arithmetic, `bare` the limits, `workloads`, `agent`, `stream` and `service` Onward, `peers/` the neighbours, `report` the
table. A figure is worth something only as a ratio to another one of the same run.
"""
