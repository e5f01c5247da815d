#!/bin/bash
# The startup script of a TPU VM: fetches the bundle that the VM's metadata names, compares its SHA-256 with
# its name, and keeps the agent, or the program that the metadata names, running. After a reboot the local copy is used. Nothing but
# bash, curl, sed, tar and sha256sum is needed until then. A VM that cannot get its bundle deletes itself, as its program does at the end.
set -u
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1"
storage="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
tpu="${CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU:-https://tpu.googleapis.com}"
give_up="${TPULM_BOOT_SECONDS:-1800}"
export HOME="${HOME:-/root}"
home="$HOME/tpulm"
mkdir -p "$home/bundles"

ask() { curl -sf --retry 20 --retry-connrefused --max-time 30 -H "Metadata-Flavor: Google" "$metadata/$1"; }
token() { ask instance/service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p'; }
# The token comes through a pipe: every user of a machine can read command lines.
signed() { curl -H @<(printf 'Authorization: Bearer %s\n' "$(token)") "$@"; }
# A guest attribute, where the supervisor can read how far this came.
tell() { curl -s -o /dev/null --max-time 5 -X PUT -H "Metadata-Flavor: Google" --data "$1" "$metadata/instance/guest-attributes/tpulm/boot"; }
failed() { echo "tpulm: $1"; tell "failed: $1"; return 1; }

# b/BUCKET/o/NAME of Cloud Storage's API, the name percent-encoded
bundle="$(ask instance/attributes/tpulm-bundle)" || failed "the metadata names no bundle"
program="$(ask instance/attributes/tpulm-program)" || program=agent
sum="$(basename "${bundle##*%2F}" .tar.gz)"
here="$home/bundles/$sum"

fetch() {
  signed -sfg --retry 5 --retry-connrefused --max-time 900 -o "$home/new.tar.gz" \
    "${storage%/}/storage/v1/$bundle?alt=media" || failed "cannot fetch $bundle" || return 1
  echo "$sum  $home/new.tar.gz" | sha256sum --check --status || failed "$bundle is not what its name says" || return 1
  rm -rf "$home/new" && mkdir "$home/new" && tar -xzf "$home/new.tar.gz" -C "$home/new" && mv -T "$home/new" "$here"
  rm -f "$home/new.tar.gz"
}

# KEY VARIABLE PATH: as our own metadata has it, else tpu-env, else Google's, which may be of a project that is not the user's
known() {
  local value; value="$(ask "instance/attributes/$1")"
  [ -n "$value" ] || value="$(ask instance/attributes/tpu-env | sed -n "s/^$2: '\(.*\)'\$/\1/p")"
  [ -n "$value" ] || [ -z "${3:-}" ] || value="$(ask "$3")"
  echo "${value##*/}"
}

delete_self() {
  local place name what
  place="projects/$(known tpulm-project CONSUMER_PROJECT_ID project/project-id)"
  place="$place/locations/$(known tpulm-zone ZONE instance/zone)"
  name="$(known tpulm-node NODE_ID)"
  echo "tpulm: no agent within $give_up s: deleting $name"
  for what in "queuedResources/$name?force=true" "nodes/$name"; do
    signed -sf --max-time 60 -X DELETE "${tpu%/}/v2/$place/$what"
  done
}

wait=1
[ -f "$here/$program.py" ] || tell fetching
until [ -f "$here/$program.py" ] || fetch; do
  [ "$SECONDS" -lt "$give_up" ] || { delete_self; sleep 60; }
  sleep "$wait"; wait=$((wait < 60 ? wait * 2 : 60))
done
lived=$SECONDS  # when the program last ended after $give_up s, in which it would have deleted a VM without a use
while true; do
  begun=$SECONDS
  python3 "$here/$program.py"
  failed "the $program has ended with exit code $?; it is started again"
  [ $((SECONDS - begun)) -lt "$give_up" ] || lived=$SECONDS
  [ $((SECONDS - lived)) -lt "$give_up" ] || { delete_self; sleep 60; }
  sleep 5
done
