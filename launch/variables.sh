# Sourced by the scripts beside it: where the project is, checked variables, dry runs.
# shellcheck shell=bash
# Variables are for the scripts that source this.
# shellcheck disable=SC2034

launch_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${launch_dir%/*}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# help_first WORD ...: where the first word asks for help, prints the comment at the head of the
# script, and ends.
help_first() {
    local line
    case ${1:-} in
    -h | --help) ;;
    *) return 0 ;;
    esac
    {
        read -r # the line that names bash
        while IFS= read -r line && [[ $line == '#'* ]]; do
            line=${line#'#'}
            printf '%s\n' "${line# }"
        done
    } <"$0"
    printf '\nMore: %s\n' "$launch_dir/README.md"
    exit
}

# need NAME PATTERN MEANING: the variable must be set and match the whole pattern.
need() {
    local value=${!1:-}
    [[ -n $value ]] || fail "$1 is not set: $3"
    [[ $value =~ ^($2)$ ]] || fail "$1 = '$value': $3"
}

# may NAME PATTERN MEANING: as need, but the variable may be empty or unset.
may() {
    if [[ -n ${!1:-} ]]; then
        need "$@"
    fi
}

# need_program NAME WHERE: a program must be on PATH; a dry run needs none.
need_program() {
    [[ $dry_run == 1 ]] || command -v "$1" >/dev/null || fail "$1 was not found: $2"
}

# check_words WORD ...: of a run on several hosts. The cluster says which process is which, and words
# pass through shells and manifests on their way.
check_words() {
    local word
    for word in "$@"; do
        case $word in
        *[[:cntrl:]]*) fail "$(printf '%q' "$word"): has control characters" ;;
        --coordinator | --coordinator=* | --processes | --processes=* | --process | --process=*)
            fail "$word: the processes of this run find each other by themselves"
            ;;
        esac
    done
}

# quoted WORD ...: the words as a shell reads them.
quoted() {
    local out
    printf -v out ' %q' "$@"
    printf '%s' "${out:1}"
}

# call PROGRAM WORD ...: runs a command, or prints it in a dry run.
call() {
    if [[ $dry_run == 1 ]]; then
        quoted "$@"
        printf '\n'
    else
        "$@"
    fi
}

# Sets dry_run, and words to the arguments without --dry-run where that comes first.
take_dry_run() {
    dry_run=0
    words=("$@")
    if [[ ${1:-} == --dry-run ]]; then
        dry_run=1
        words=("${@:2}")
    fi
    help_first "${words[@]}"
}
