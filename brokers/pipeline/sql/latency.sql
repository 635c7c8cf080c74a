-- How long messages waited for their first delivery, and how long they stayed in their queue.
-- Ranks are exact up to 10,000 messages of a queue, and within one in 10,000 beyond.
WITH waits AS (
  SELECT protocol, name, stack(2, 'until_delivered_ms', until_delivered_ms, 'in_queue_ms', in_queue_ms)
    AS (measure, ms)
  FROM lives
),
ranked AS (
  SELECT protocol, name, measure, count(ms) AS messages, max(ms) AS max_ms,
    percentile_approx(ms, array(0.5, 0.9, 0.99, 0.999), 10000) AS ranks
  FROM waits WHERE ms IS NOT NULL GROUP BY protocol, name, measure
)
SELECT protocol, name, measure, messages,
  ranks[0] AS p50_ms, ranks[1] AS p90_ms, ranks[2] AS p99_ms, ranks[3] AS p999_ms, max_ms
FROM ranked
ORDER BY protocol, name, measure
