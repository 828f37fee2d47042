-- A replica that stops takes its entries with it, unless a newer generation owns them. The fence stays.
-- ARGV: replica id, generation. Returns {'RETIRED'} or {'FENCED', newer generation}.
local fence = redis.call('GET', fence_key)
if is_older(ARGV[2], fence) then return {'FENCED', fence} end
redis.call('DEL', replica_key, held_key, reservations_key, leases_key)
redis.call('ZREM', index_key, ARGV[1])
return {'RETIRED'}
