"""The neighbours, each at the best setting found on two cores, with fsync, on the database that Onward is measured on.

    host            makes an environment for each (.bench/venv-NAME, pinned by NAME.txt) and runs a workload in it
    child           what the scripts below share; they run inside those environments and print one figure a line
    pgqueuer_run    the quickest queue: W1, W2, W4 pick-up. It has no steps
    absurd_run      the quickest durable steps: W3, W4
    dbos_run        the best known durable steps, and the quickest recovery: W3, W4, W5; also on SQLite

A script asserts that the work was really done before it reports how quickly.
"""
