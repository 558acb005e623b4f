-- Documents that integrations keep beside tasks: checkpoints and memories of LangGraph, sessions of other frameworks.

-- A collection belongs to one integration. Keys are ordered by their bytes, so a range of keys is a thread, a session or a namespace.
-- `tenant` is '' for documents without a tenant.
CREATE TABLE onward_documents (
    tenant     TEXT NOT NULL,
    collection TEXT NOT NULL,
    key        TEXT NOT NULL,
    data       BLOB NOT NULL,
    at         REAL NOT NULL,
    PRIMARY KEY (tenant, collection, key)
) STRICT, WITHOUT ROWID;
