-- One campaign, one database. The engine is the only writer and checkpointer; everyone else reads.
-- Times are Unix seconds (REAL). JSON columns hold msgspec-encoded records of engine.records / engine.store.events.

CREATE TABLE campaign (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    problem_name TEXT NOT NULL,
    problem TEXT NOT NULL,          -- frozen engine.problems.model.Problem as JSON
    kernel_type TEXT NOT NULL,
    config TEXT NOT NULL,           -- engine.config.CampaignConfig as JSON; budgets here are the current ones
    device TEXT NOT NULL,           -- as asked for: cpu, cuda:0
    device_facts TEXT,              -- engine.records.DeviceFacts as JSON, once known
    seed_solution TEXT NOT NULL,    -- blob sha of the seed's solution.json
    baselines TEXT                  -- engine.records.Baselines as JSON, once measured
);

-- Decisions only, append-only, followed by sequence number.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    agent TEXT NOT NULL DEFAULT '', -- whose decision it is, for one agent's log
    data TEXT NOT NULL              -- tagged engine.store.events union as JSON
);
CREATE INDEX events_by_agent ON events (agent, seq) WHERE agent <> '';

-- Answered commands by the caller's id, so that a repeated command is answered and not carried out again.
CREATE TABLE commands (
    id TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,           -- of the CommandAnswered event
    ok INTEGER NOT NULL,
    text TEXT NOT NULL
) WITHOUT ROWID;

-- engine.store.summary.Summary after event ``seq``; one row every 1,000 events; the newest is ``current``.
CREATE TABLE snapshots (
    seq INTEGER PRIMARY KEY,
    summary TEXT NOT NULL
);
CREATE TABLE current (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,           -- the summary is the fold of events 1..seq, updated in their transaction
    summary TEXT NOT NULL
);

CREATE TABLE candidates (
    number INTEGER PRIMARY KEY,     -- campaign-wide, 1-based, in order of verdict
    agent TEXT NOT NULL,
    position INTEGER NOT NULL,      -- the agent's budget position, 1-based
    at REAL NOT NULL,
    mode TEXT NOT NULL,
    strategy TEXT NOT NULL,
    family TEXT NOT NULL,
    parameters TEXT NOT NULL,       -- JSON object
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    latency_ms REAL,
    speedup REAL,
    log_ratio REAL,                 -- ln(best / candidate) at the time; > 0 is faster
    log_ratio_lo REAL,              -- its 95 % interval
    log_ratio_hi REAL,
    sol_score REAL,
    seconds REAL NOT NULL DEFAULT 0,
    parent INTEGER,                 -- candidate number of its base, 0 the seed
    solution TEXT,                  -- blob sha of solution.json; NULL when the reply held none
    prompt TEXT,                    -- blob sha
    reply TEXT,                     -- blob sha
    evaluation TEXT,                -- blob sha of engine.records.Evaluation
    hypothesis TEXT NOT NULL,
    predicted_change TEXT NOT NULL,
    model TEXT,
    tokens_in INTEGER NOT NULL DEFAULT 0,
    tokens_out INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL,
    source_sha TEXT,                -- engine.problems.solution.solution_sha, for duplicates
    vetoed_at REAL,
    UNIQUE (agent, position)
);
CREATE INDEX candidates_by_agent ON candidates (agent, number);
CREATE INDEX candidates_by_outcome ON candidates (outcome, number);
CREATE INDEX candidates_by_agent_outcome ON candidates (agent, outcome, number);
CREATE INDEX candidates_by_source ON candidates (source_sha) WHERE source_sha IS NOT NULL;

CREATE TABLE workload_results (
    candidate INTEGER NOT NULL REFERENCES candidates (number),
    ordinal INTEGER NOT NULL,
    data TEXT NOT NULL,             -- engine.records.WorkloadResult as JSON
    PRIMARY KEY (candidate, ordinal)
) WITHOUT ROWID;

-- Immutable but for the veto mark. ``best``: every KEEP of an agent, in order; ``accepted``: its working points.
CREATE TABLE archive (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('best', 'accepted')),
    candidate INTEGER NOT NULL REFERENCES candidates (number),
    at REAL NOT NULL,
    vetoed_at REAL
);
CREATE INDEX archive_by_agent ON archive (agent, kind, id);
CREATE INDEX archive_by_candidate ON archive (candidate);

CREATE TABLE memory (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('win', 'trap')),
    kernel_type TEXT NOT NULL,
    strategy TEXT NOT NULL CHECK (length(strategy) <= 160),
    reflection TEXT NOT NULL CHECK (length(reflection) <= 1200),
    error TEXT NOT NULL DEFAULT '',
    speedup REAL,
    gain REAL,
    before_ms REAL,
    after_ms REAL,
    shapes TEXT NOT NULL DEFAULT '',
    agent TEXT NOT NULL,
    candidate INTEGER,
    device TEXT NOT NULL,
    versions TEXT NOT NULL DEFAULT '{}',
    at REAL NOT NULL,
    merged INTEGER NOT NULL DEFAULT 1,      -- how many near-duplicates it stands for
    pinned INTEGER NOT NULL DEFAULT 0,
    note TEXT NOT NULL DEFAULT '',
    expired_at REAL,
    expired_why TEXT NOT NULL DEFAULT '',
    carried_from TEXT NOT NULL DEFAULT ''   -- another campaign's name
);
CREATE INDEX memory_by_candidate ON memory (candidate) WHERE candidate IS NOT NULL;
CREATE INDEX memory_live ON memory (kernel_type, kind, id) WHERE expired_at IS NULL;

-- One mutable row per agent: what it is doing now. At most four writes a second.
CREATE TABLE live (
    agent TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    detail TEXT NOT NULL DEFAULT '',
    since REAL NOT NULL,
    strategy TEXT NOT NULL DEFAULT '',
    mode TEXT NOT NULL DEFAULT 'refine',
    hypothesis TEXT NOT NULL DEFAULT '',
    reply TEXT NOT NULL DEFAULT '',         -- tail of the growing reply, bounded
    tokens INTEGER NOT NULL DEFAULT 0,
    updated_at REAL NOT NULL
) WITHOUT ROWID;

-- Telemetry, down-sampled after ten minutes.
CREATE TABLE samples (
    device TEXT NOT NULL,
    at REAL NOT NULL,
    data TEXT NOT NULL,             -- engine.records.Sample as JSON
    PRIMARY KEY (device, at)
) WITHOUT ROWID;

-- Sources, prompts, replies, evaluations: content-addressed, zlib-compressed.
CREATE TABLE blobs (
    sha TEXT PRIMARY KEY,           -- SHA-256 of the uncompressed bytes
    size INTEGER NOT NULL,
    data BLOB NOT NULL
) WITHOUT ROWID;

-- Money: reserved before a call is sent, settled or charged in full afterwards.
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'settled', 'lost')),
    reserved_usd REAL,              -- NULL: price unknown, tokens count instead
    reserved_tokens INTEGER NOT NULL,
    charged_usd REAL,
    tokens_in INTEGER NOT NULL DEFAULT 0,
    tokens_out INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX ledger_open ON ledger (state) WHERE state = 'reserved';

-- What a proposer or strategy policy must find again after a crash, by agent.
CREATE TABLE agent_memo (
    agent TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,            -- JSON
    PRIMARY KEY (agent, key)
) WITHOUT ROWID;
