package initd

import (
	"errors"
	"slices"
)

// SplitArgs divides the arguments of "execd init" at the first "--": execd's own flags before it, the entrypoint
// after it. The "--" is required, so that no word of an entrypoint is ever taken for a flag of ours.
func SplitArgs(args []string) (flags, entrypoint []string, err error) {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return nil, nil, errors.New("usage: execd init [flags] -- entrypoint [arguments]: the entrypoint is missing")
	}
	return args[:at], args[at+1:], nil
}
