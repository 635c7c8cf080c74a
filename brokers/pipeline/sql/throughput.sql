-- How much went through: messages and bytes by minute, protocol and name.
SELECT window(time, '1 minute').start AS start, protocol, name,
  sum(messages) AS messages, sum(bytes) AS bytes,
  sum(messages) / 60 AS messages_per_second, sum(bytes) / 60 AS bytes_per_second
FROM volumes
WHERE fault IS NULL
GROUP BY start, protocol, name
ORDER BY start, protocol, name
