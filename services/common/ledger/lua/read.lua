-- All live replicas in one round trip; writes nothing, so an ACL user without write permission may run it.
-- KEYS: index. ARGV: prefix of the fleet's keys, '1' for requests and reservations too.
-- Returns {now ms, {{id, replica hash, blocks reserved, held hash, {reservation id, expiry ms, blocks, …}}, …}}.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local prefix, detailed = ARGV[1], ARGV[2] == '1'
local rows = {}

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')) do
  local replica_key = prefix .. 'replica:' .. id
  local reservations_key, leases_key = prefix .. 'reservations:' .. id, prefix .. 'leases:' .. id
  -- `reserved` in the hash still counts what expired since the last script that writes.
  local reserved = 0
  if redis.call('EXISTS', leases_key) == 1 then
    reserved = tonumber(redis.call('HGET', replica_key, 'reserved') or '0')
    for _, reservation in ipairs(redis.call('ZRANGEBYSCORE', leases_key, '-inf', now)) do
      reserved = reserved - tonumber(redis.call('HGET', reservations_key, reservation) or '0')
    end
  end
  local held, reservations = {}, {}
  if detailed then
    held = redis.call('HGETALL', prefix .. 'held:' .. id)
    local leases = redis.call('ZRANGEBYSCORE', leases_key, '(' .. now, '+inf', 'WITHSCORES')
    for i = 1, #leases, 2 do
      reservations[#reservations + 1] = leases[i]
      reservations[#reservations + 1] = leases[i + 1]
      reservations[#reservations + 1] = redis.call('HGET', reservations_key, leases[i]) or '0'
    end
  end
  rows[#rows + 1] = {id, redis.call('HGETALL', replica_key), reserved, held, reservations}
end
return {now, rows}
