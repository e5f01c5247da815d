#!/bin/bash
# The startup script of a TPU VM: fetches the bundle that the VM's metadata names, compares its SHA-256 with its name, and keeps the
# agent in it running. After a reboot the local copy is used. Nothing but bash, curl, sed, tar and sha256sum is needed until then.
# A VM that cannot get its bundle deletes its node, as the agent does at the end.
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

# b/BUCKET/o/NAME of Cloud Storage's API, the name percent-encoded
bundle="$(ask instance/attributes/tpulm-bundle)" || echo "tpulm: the metadata names no bundle"
sum="$(basename "${bundle##*%2F}" .tar.gz)"
here="$home/bundles/$sum"

fetch() {
  curl -sfg --retry 5 --retry-connrefused --max-time 900 -H "Authorization: Bearer $(token)" -o "$home/new.tar.gz" \
    "${storage%/}/storage/v1/$bundle?alt=media" || { echo "tpulm: cannot fetch $bundle"; return 1; }
  echo "$sum  $home/new.tar.gz" | sha256sum --check --status || { echo "tpulm: $bundle is not what its name says"; return 1; }
  rm -rf "$home/new" && mkdir "$home/new" && tar -xzf "$home/new.tar.gz" -C "$home/new" && mv -T "$home/new" "$here"
  rm -f "$home/new.tar.gz"
}

delete_node() {
  local zone name what
  zone="$(ask instance/zone)"; name="$(ask instance/attributes/tpulm-node)"
  echo "tpulm: no agent within $give_up s: deleting $name"
  for what in "queuedResources/$name?force=true" "nodes/$name"; do
    curl -sf --max-time 60 -X DELETE -H "Authorization: Bearer $(token)" \
      "${tpu%/}/v2/projects/$(ask project/project-id)/locations/${zone##*/}/$what"
  done
}

wait=1
until [ -f "$here/agent.py" ] || fetch; do
  [ "$SECONDS" -lt "$give_up" ] || { delete_node; sleep 60; }
  sleep "$wait"; wait=$((wait < 60 ? wait * 2 : 60))
done
while true; do
  python3 "$here/agent.py"
  echo "tpulm: the agent has ended with exit code $?; it is started again"
  sleep 5
done
