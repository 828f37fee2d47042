-- A router reserves blocks if they fit beside all other reservations. The same id again changes nothing but the lease.
-- ARGV: reservation id, blocks, lease ms.
-- Returns {'GRANTED' | 'REFUSED', free, reserved} or {'UNKNOWN'} (no live replica of that name).
local id, blocks, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = clock_ms()
drop_expired(now)

local free = tonumber(redis.call('HGET', replica_key, 'free'))
if not free then return {'UNKNOWN'} end

local more = blocks - tonumber(redis.call('HGET', reservations_key, id) or '0')
local verdict = 'REFUSED'
if more <= 0 or free - tonumber(redis.call('HGET', replica_key, 'reserved')) >= more then
  put_reservation(id, blocks, now, lease_ms)
  verdict = 'GRANTED'
end
return {verdict, free, tonumber(redis.call('HGET', replica_key, 'reserved'))}
