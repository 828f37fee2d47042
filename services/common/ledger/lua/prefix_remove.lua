-- Prefixes have left a replica's cache. KEYS: those of the replica, then one for each prefix.
-- ARGV: replica id, generation. What a newer generation has written stays.
local id, generation = ARGV[1], ARGV[2]
for i = 7, #KEYS do
  if redis.call('HGET', KEYS[i], id) == generation then redis.call('HDEL', KEYS[i], id) end
end
return #KEYS - 6
