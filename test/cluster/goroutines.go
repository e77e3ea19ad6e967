package cluster

import (
	"runtime"
	"strings"

	"sandbox.internal/test/wait"
)

// module begins the names of our own functions in a stack.
const module = "sandbox.internal/"

// Goroutines returns the stacks of the goroutines that run code of this module, but for the
// caller's, after they had some time to end; it is empty when none is left. The libraries of
// Kubernetes leave goroutines of their own behind when they are cut off, so that a check of all
// goroutines says nothing.
func Goroutines() (left string) {
	wait.Within(wait.Patience(), func() bool { left = ours(); return left == "" })
	return left
}

func ours() string {
	stacks := make([]byte, 64<<10)
	for n := runtime.Stack(stacks, true); n == len(stacks); n = runtime.Stack(stacks, true) {
		stacks = make([]byte, 2*len(stacks))
	}
	var left []string
	for i, stack := range strings.Split(strings.TrimRight(string(stacks), "\x00"), "\n\n") {
		if i > 0 && strings.Contains(stack, "\n"+module) { // the first one is the caller's
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
