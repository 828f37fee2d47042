-- A router gives a reservation back. ARGV: reservation id. Returns 1, or 0 where it was admitted, released or expired.
drop_expired(clock_ms())
return drop_reservation(ARGV[1]) and 1 or 0
