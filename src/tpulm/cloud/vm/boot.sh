#!/bin/bash
# The startup script of a TPU VM: fetches the bundle that the VM's metadata names, compares its SHA-256 with its name, and starts the
# agent in it. After a reboot the local copy is used. Nothing but bash, curl, sed, tar and sha256sum is needed until then.
set -u
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
storage="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
home="${HOME:-/root}/tpulm"
mkdir -p "$home/bundles"

about_me() { curl -sf --retry 20 --retry-connrefused --max-time 30 -H "Metadata-Flavor: Google" "$metadata/$1"; }

bundle="$(about_me attributes/tpulm-bundle)" || { echo "tpulm: the metadata names no bundle"; exit 1; }
sum="$(basename "$bundle" .tar.gz)"
here="$home/bundles/$sum"

fetch() {
  local token path bucket object
  token="$(about_me service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')"
  path="${bundle#gs://}"; bucket="${path%%/*}"; object="${path#*/}"
  curl -sf --retry 5 --retry-connrefused --max-time 900 -H "Authorization: Bearer $token" -o "$home/new.tar.gz" \
    "$storage/storage/v1/b/$bucket/o/${object//\//%2F}?alt=media" || { echo "tpulm: cannot fetch $bundle"; return 1; }
  echo "$sum  $home/new.tar.gz" | sha256sum --check --status || { echo "tpulm: $bundle is not what its name says"; return 1; }
  rm -rf "$home/new" && mkdir "$home/new" && tar -xzf "$home/new.tar.gz" -C "$home/new" && mv -T "$home/new" "$here"
  rm -f "$home/new.tar.gz"
}

wait=1
until [ -f "$here/agent.py" ] || fetch; do
  sleep "$wait"; wait=$((wait < 60 ? wait * 2 : 60))
done
export HOME="${HOME:-/root}"
exec python3 "$here/agent.py"
