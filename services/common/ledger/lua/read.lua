-- All live replicas in one round trip; writes nothing, so an ACL user without write permission may run it.
-- KEYS: index. ARGV: prefix of the fleet's keys, '1' for requests and reservations too.
-- Returns JSON, which is an order of magnitude cheaper to take apart than a nested reply:
-- {"now_ms", "replicas": [{"id", "fields", "reserved", "held", "reservations": [[id, expiry ms, blocks], …]}, …]}.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local prefix, detailed = ARGV[1], ARGV[2] == '1'

local function hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function unexpired(reservations_key, leases_key)
  local reservations = {}
  local leases = redis.call('ZRANGEBYSCORE', leases_key, '(' .. now, '+inf', 'WITHSCORES')
  for i = 1, #leases, 2 do
    local blocks = redis.call('HGET', reservations_key, leases[i]) or '0'
    reservations[#reservations + 1] = {leases[i], leases[i + 1], blocks}
  end
  return reservations
end

-- `reserved` in the hash still counts what expired since the last script that writes.
local function promised(fields, reservations_key, leases_key)
  if redis.call('EXISTS', leases_key) == 0 then return 0 end
  local reserved = tonumber(fields.reserved or '0')
  for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases_key, '-inf', now)) do
    reserved = reserved - tonumber(redis.call('HGET', reservations_key, reservation) or '0')
  end
  return reserved
end

local replicas = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')) do
  local reservations_key, leases_key = prefix .. 'reservations:' .. id, prefix .. 'leases:' .. id
  local replica = {id = id, fields = hash(prefix .. 'replica:' .. id)}
  replica.reserved = promised(replica.fields, reservations_key, leases_key)
  if detailed then
    replica.held = hash(prefix .. 'held:' .. id)
    replica.reservations = unexpired(reservations_key, leases_key)
  end
  replicas[#replicas + 1] = replica
end
return cjson.encode({now_ms = now, replicas = replicas})
