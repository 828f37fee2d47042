#!/usr/bin/env bash
# Writes every secret of the compose files into a folder: make-secrets.sh FOLDER
#
# Certificates by `forerun certs` (again: renewed), a random password for each Redis user, one API key, Grafana's
# password. What is there already stays, but certificates. Keep ca.key off the nodes; bring the rest to each.
set -euo pipefail

folder=${1:?usage: make-secrets.sh FOLDER}
mkdir -p "$folder"
umask 077

hosts=(redis router-0 router-1 scheduler-0 scheduler-1 predictor stage-0 stage-1 stage-b-0 stage-b-1 stage-c-0)
forerun certs --out "$folder" "${hosts[@]/#/--host=}"

secret() { [ -s "$folder/$1" ] || openssl rand -hex 24 >"$folder/$1"; }
hash() { printf %s "$(cat "$folder/$1")" | openssl dgst -sha256 -r | cut -d' ' -f1; }

for name in redis-operator redis-router redis-scheduler grafana-admin; do secret "$name"; done
[ -s "$folder/api-keys" ] || echo "$(openssl rand -hex 24) default" >"$folder/api-keys"

# The ledger's keys, its scripts, and what a client needs to connect; nothing that empties or manages the server.
ledger='~forerun:* resetchannels -@all +@read +@write +@scripting +@connection -@dangerous +info +time'
cat >"$folder/users.acl" <<ACL
user default off
user operator on #$(hash redis-operator) ~* &* +@all
user router on #$(hash redis-router) $ledger
user scheduler on #$(hash redis-scheduler) $ledger
ACL
echo "Written to $folder. Containers run as uid 10001, which must be able to read them: chown 10001 $folder/*"
