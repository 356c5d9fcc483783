# What the commands of an agent with files share (programs/document_files.py): the run's own process
# searches and reads, and what concerns no file of a document is left to the programs of their names.

name=${0##*/}
PATH=${PATH//"${BASH_SOURCE%/*}:"/}

refuse() {
  echo "$name: $*" >&2
  exit 2
}

# is_ours PATH: whether it is in the folder of the files
is_ours() {
  [[ -e $1 && $(realpath -- "$1")/ == "$SEXTANT_FILES"/* ]]
}

# is_any_ours WORD ...
is_any_ours() {
  local word
  for word; do
    is_ours "$word" && return
  done
  return 1
}

# pass_on WORD ...: start the next program in the PATH
pass_on() {
  type -P "$name" >/dev/null || refuse "it only reads files below \$SEXTANT_FILES here"
  exec "$name" "$@"
}

# send WORD ...: have the run do it. It answers by an exit code with a line for stderr, and then what
# is for stdout.
send() {
  local IFS=$'\x1f' LC_ALL=C place=${SEXTANT_MCP_URL#http://} line code note
  local body=$*
  place=${place%%/*}
  exec 3<>"/dev/tcp/${place%:*}/${place#*:}" || refuse "the run cannot be reached"
  printf 'POST /command HTTP/1.0\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s' \
    "$place" "$SEXTANT_TOKEN" "${#body}" "$body" >&3
  while IFS= read -r line <&3 && [[ $line != $'\r' ]]; do :; done
  IFS=' ' read -r code note <&3
  [[ $code == [012] ]] || refuse "the run cannot do this: $code $note"
  [[ -z $note ]] || echo "$name: $note" >&2
  cat <&3
  exec 3>&-
  return "$code"
}
