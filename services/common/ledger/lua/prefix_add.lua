-- A replica has prefixes cached. KEYS: those of the replica, then one for each prefix.
-- ARGV: replica id, generation, life ms. A left-over process of an older generation changes nothing.
local id, generation, life_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if is_older(generation, redis.call('GET', fence_key)) then return 0 end
for i = 7, #KEYS do
  redis.call('HSET', KEYS[i], id, generation)
  redis.call('PEXPIRE', KEYS[i], life_ms)
end
return #KEYS - 6
