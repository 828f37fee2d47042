-- A replica writes its state, whole (base 0) or as changes to the state of its own write number `base`.
-- ARGV: replica id, generation, lease ms, fence ms, writer, sequence, base, address, changes (JSON).
-- Returns {'WRITTEN'}; {'RESYNC'}: the base is not there, send the whole; {'STALE'}: a later write came first;
-- {'FENCED', newer generation}.
local id, generation, lease_ms, fence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local writer, sequence, base = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local address, changes = ARGV[8], cjson.decode(ARGV[9])
local now = clock_ms()

local fence = redis.call('GET', fence_key)
if is_older(generation, fence) then return {'FENCED', fence} end

-- A Redis that hung answers commands which their sender gave up long ago; they must not undo newer ones.
local stored = redis.call('HMGET', replica_key, 'writer', 'sequence')
local written = stored[1] == writer and tonumber(stored[2]) or 0
if written >= sequence then return {'STALE'} end
if base ~= 0 and written ~= base then return {'RESYNC'} end

if base == 0 then
  redis.call('DEL', replica_key, held_key)
  drop_expired(now)
  local reserved = 0
  for _, blocks in ipairs(redis.call('HVALS', reservations_key)) do reserved = reserved + tonumber(blocks) end
  redis.call('HSET', replica_key, 'generation', generation, 'address', address, 'reserved', reserved)
else
  drop_expired(now)
end

for name, count in pairs(changes.totals) do redis.call('HSET', replica_key, name, count) end
redis.call('HSET', replica_key, 'heartbeat', now, 'writer', writer, 'sequence', sequence)
for request, blocks in pairs(changes.held) do redis.call('HSET', held_key, request, blocks) end
for _, request in ipairs(changes.ended) do redis.call('HDEL', held_key, request) end

-- Held blocks and the end of the reservations they come from land together: nobody counts both or neither.
for _, reservation in ipairs(changes.settled) do drop_reservation(reservation) end
for reservation, blocks in pairs(changes.waiting) do
  -- What the router promised stands; the replica's own figure serves where nothing was reserved or it was lost.
  local promised = tonumber(redis.call('HGET', reservations_key, reservation) or blocks)
  put_reservation(reservation, promised, now, lease_ms)
end

redis.call('PEXPIRE', replica_key, lease_ms)
redis.call('PEXPIRE', held_key, lease_ms)
redis.call('SET', fence_key, generation, 'PX', fence_ms)
redis.call('ZREMRANGEBYSCORE', index_key, '-inf', now)
redis.call('ZADD', index_key, now + lease_ms, id)
if redis.call('PTTL', index_key) < lease_ms then redis.call('PEXPIRE', index_key, lease_ms) end
return {'WRITTEN'}
