-- In front of every script about one replica. Lua sees Redis' clock only, so skewed client clocks do not matter.
local replica_key, held_key, reservations_key, leases_key, index_key, fence_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

local function clock_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- `reserved` in the replica's hash is the sum of its reservations; every change of one goes through here.
local function add_reserved(blocks)
  if blocks ~= 0 and redis.call('EXISTS', replica_key) == 1 then
    redis.call('HINCRBY', replica_key, 'reserved', blocks)
  end
end

local function drop_reservation(id)
  local blocks = redis.call('HGET', reservations_key, id)
  redis.call('ZREM', leases_key, id)
  if not blocks then return false end
  redis.call('HDEL', reservations_key, id)
  add_reserved(-tonumber(blocks))
  return true
end

-- To be called before any change of the sum.
local function drop_expired(now)
  -- The reservations may have expired as a whole, by their keys' time to live, and left the sum behind.
  if redis.call('EXISTS', leases_key) == 0 and redis.call('EXISTS', replica_key) == 1 then
    redis.call('HSET', replica_key, 'reserved', 0)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases_key, '-inf', now)) do
    drop_reservation(id)
  end
end

local function put_reservation(id, blocks, now, lease_ms)
  local before = tonumber(redis.call('HGET', reservations_key, id) or '0')
  redis.call('HSET', reservations_key, id, blocks)
  redis.call('ZADD', leases_key, now + lease_ms, id)
  add_reserved(blocks - before)
  for _, key in ipairs({reservations_key, leases_key}) do
    if redis.call('PTTL', key) < lease_ms then redis.call('PEXPIRE', key, lease_ms) end
  end
end

-- Generations are 64-bit, more than a Lua number holds: compare them as padded text.
local function is_older(generation, than)
  local function padded(text) return string.rep('0', 20 - #text) .. text end
  return than and padded(generation) < padded(than)
end
