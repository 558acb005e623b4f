-- Budgets: one purse for each task that has one; its children spend from it too. See core/budget.py for what is in it.
CREATE TABLE onward_purses (
    task_id text COLLATE "C" NOT NULL PRIMARY KEY,
    data    bytea NOT NULL
);
