-- The tables of a PostgreSQL store of format 3, as lgov made them before format 4.
CREATE TABLE rollouts (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        input TEXT NOT NULL,
        created_at double precision NOT NULL
    );
CREATE INDEX rollouts_of_run ON rollouts (run_id);
CREATE TABLE attempts (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
        attempt bigint NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision,
        outcome TEXT,
        error TEXT,
        result TEXT,
        UNIQUE (rollout_id, attempt)
    );
CREATE TABLE calls (
        seq bigint PRIMARY KEY,
        response_id TEXT NOT NULL,
        choice bigint NOT NULL,
        route TEXT NOT NULL,
        model TEXT NOT NULL,
        request TEXT NOT NULL,
        response TEXT NOT NULL,
        prompt_rest bytea,
        response_ids bytea,
        logprobs bytea,
        finish_reason TEXT NOT NULL,
        weights_version bigint,
        temperature double precision NOT NULL,
        top_p double precision NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision NOT NULL,
        rollout_id TEXT,
        attempt bigint,
        agent TEXT,
        tool_call_ids TEXT NOT NULL,
        engine TEXT NOT NULL,
        base bigint,
        prompt_shared bigint NOT NULL DEFAULT 0,
        request_repeats TEXT,
        UNIQUE (response_id, choice)
    );
CREATE TABLE rewards (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        reward_id TEXT NOT NULL UNIQUE,
        value double precision NOT NULL,
        dimension TEXT NOT NULL,
        rollout_id TEXT,
        attempt bigint,
        response_id TEXT,
        tool_call_id TEXT,
        source TEXT NOT NULL,
        choice bigint
    );
CREATE INDEX rewards_of_rollout ON rewards (rollout_id);
CREATE TABLE spans (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        span_id TEXT NOT NULL,
        name TEXT NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision,
        attributes TEXT NOT NULL,
        rollout_id TEXT,
        attempt bigint,
        parent_id TEXT,
        trace_id TEXT,
        events TEXT,
        claimed bigint NOT NULL DEFAULT 0,
        digest bytea
    );
CREATE INDEX spans_of_rollout ON spans (rollout_id);
CREATE UNIQUE INDEX spans_once ON spans (digest);
CREATE TABLE queue (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id TEXT NOT NULL UNIQUE REFERENCES rollouts (rollout_id),
        run_id TEXT NOT NULL,
        state TEXT NOT NULL,
        config TEXT NOT NULL,
        enqueued_at double precision NOT NULL,
        available_at double precision NOT NULL,
        attempt bigint NOT NULL DEFAULT 0,
        outcome TEXT,
        worker_id TEXT,
        lease_until double precision,
        deadline double precision,
        ended_at double precision,
        reason TEXT
    );
CREATE INDEX queue_waits ON queue (seq) WHERE state IN ('queued', 'requeued');
CREATE INDEX queue_waits_of_run ON queue (run_id, seq) WHERE state IN ('queued', 'requeued');
CREATE INDEX queue_runs ON queue (least(lease_until, deadline)) WHERE state = 'running';
CREATE INDEX queue_of_worker ON queue (worker_id) WHERE state = 'running';
CREATE INDEX queue_of_run ON queue (run_id);
CREATE INDEX attempts_open ON attempts (seq) WHERE ended_at IS NULL;
CREATE SEQUENCE calls_order;
CREATE INDEX calls_of_rollout ON calls (rollout_id, attempt, seq);
ALTER TABLE queue ADD COLUMN ended_seq bigint UNIQUE;
CREATE SEQUENCE ended_order;
CREATE TABLE writers (
        writer bigint PRIMARY KEY,
        number bigint NOT NULL,
        seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
CREATE TABLE format (number bigint NOT NULL);
INSERT INTO format VALUES (0);
UPDATE format SET number = 3;
