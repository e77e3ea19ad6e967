// Command egress-init is process 1 of the egress sidecar. It keeps the network namespace alive, which ends with the container, and
// starts the guard again when it ends; nothing passes meanwhile.
//
//	egress-init PROGRAM [ARGUMENT...]
//
// When the guard ends before its gate was ever open, egress-init ends with its status: a sidecar that cannot work is seen at once.
package main

import (
	"os"
	"time"

	"sandbox.internal/execd/supervisor"
)

// name is what this program is called in its messages.
const name = "egress-init"

func main() {
	supervisor.Exit(name, func() int {
		return supervisor.Run(supervisor.Options{
			Name:         name,
			Program:      os.Args[1:],
			Prefix:       supervisor.PrefixEgress,
			LongestPause: time.Second,
			Meanwhile:    "nothing passes",
		})
	})
}
