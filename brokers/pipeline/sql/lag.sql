-- How far readers are behind. A group of LogMQ has read a topic up to its position; of a session, what a clean
-- stop has kept for it is unread. `seconds`: from the oldest unread message to the newest.
WITH newest AS (
  SELECT protocol, reader, read_namespace, log_id, max_by(struct(position, ended), `offset`) AS last
  FROM places
  WHERE fault IS NULL AND log_id IS NOT NULL
  GROUP BY protocol, reader, read_namespace, log_id
),
readers AS (
  SELECT newest.protocol, reader, logs.log AS name, last.position, logs.first, logs.end
  FROM newest JOIN logs ON logs.namespace = read_namespace AND logs.log_id = newest.log_id
  WHERE last.position IS NOT NULL AND NOT last.ended
)
SELECT readers.protocol, reader, readers.name, position, end,
  count(records.`offset`) AS messages, coalesce(sum(length(payload)), 0) AS bytes,
  greatest(first - position, 0) AS lost_bytes,
  (unix_millis(max(time)) - unix_millis(min(time))) / 1000 AS seconds
FROM readers LEFT JOIN logmq.records AS records
  ON records.log = readers.name AND records.`offset` >= readers.position
GROUP BY readers.protocol, reader, readers.name, position, end, first
UNION ALL
SELECT protocol, reader, NULL, NULL, NULL, sum(messages), sum(bytes), NULL, NULL
FROM kept WHERE fault IS NULL GROUP BY protocol, reader
ORDER BY messages DESC, protocol, reader, name
