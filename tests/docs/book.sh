#!/bin/sh
# Builds the book into target/book/docs, and puts beside it what its pages link to in the repository.
# Its builder is installed once, into the cache.
set -eu
cd "$(dirname "$0")/../.."
version=0.4.52
cache=${WALPOST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/walpost}
[ -n "${WALPOST_CACHE:-}" ] || [ "$(id -u)" -ne 0 ] || cache=/var/cache/walpost
mdbook=$cache/mdbook-$version/bin/mdbook
if [ ! -x "$mdbook" ]; then
    echo "Building mdbook $version: some minutes, once."
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    cargo install --quiet --locked mdbook --version "$version" --root "$cache/mdbook-$version" --target-dir "$built"
fi
rm -rf target/book
"$mdbook" build docs
# Links out of docs/, as pages at its top and one folder below write them.
grep -rhoE '\]\((\.\./)+[A-Za-z][^)#]*' docs --include='*.md' | sed -E 's,^\]\((\.\./)+,,' | sort -u |
    while read -r path; do
        [ -e "docs/$path" ] && continue # to a page, from a folder below
        mkdir -p "target/book/$(dirname "$path")"
        cp -r "$path" "target/book/$(dirname "$path")/"
    done
echo "target/book/docs/index.html"
