-- Which replicas have the longest prefixes of a prompt. KEYS: one for each prefix, the shortest first.
-- ARGV: most replicas to answer with; how many holders make a crowd.
-- Returns {{replica id, generation, number of the longest prefix}, ...}, the longest first. A replica that has a prefix
-- is taken to have all shorter ones, since caches drop a prompt's end first. From a prefix that a crowd has on, shorter
-- ones tell nobody apart.
local most, crowd = tonumber(ARGV[1]), tonumber(ARGV[2])
local found, seen = {}, {}
for i = #KEYS, 1, -1 do
  local holders = redis.call('HLEN', KEYS[i])
  if holders > crowd then break end
  if holders > 0 then
    local flat = redis.call('HGETALL', KEYS[i])
    for j = 1, #flat, 2 do
      -- An earlier start of a replica, whose entries do not count, must not hide what it has now.
      local holder = flat[j] .. ' ' .. flat[j + 1]
      if not seen[holder] and #found < most then
        seen[holder] = true
        found[#found + 1] = {flat[j], flat[j + 1], i}
      end
    end
    if #found >= most then break end
  end
end
return found
