// Command egress-init is process 1 of the egress sidecar. It keeps the network namespace alive,
// which ends with the container, and starts the egress daemon again when it ends; nothing passes
// meanwhile.
//
//	egress-init PROGRAM [ARGUMENT...]
//
// It listens on the egress daemon's port before the egress daemon runs, and keeps the port while
// the egress daemon is started again: the sandbox shares the network. When the egress daemon ends
// before it was ever ready, egress-init ends with its status: a sidecar that cannot work is seen at
// once.
package main

import (
	"net/netip"
	"os"
	"strconv"
	"time"

	"sandbox.internal/internal/supervisor"
)

// name is what this program is called in its messages.
const name = "egress-init"

// defaultPort is that of package config, which reads the same settings for the egress daemon; it
// would make this program many times as large.
const defaultPort = "18080"

func main() { supervisor.Exit(name, func() int { return run(os.Args[1:]) }) }

func run(program []string) int {
	var listener *os.File
	if host, port, ok := address(program); ok {
		var err error
		if listener, err = supervisor.Listen(host, port, "the port of the egress daemon"); err != nil {
			_, _ = os.Stderr.WriteString(name + ": " + err.Error() + "\n")
			return 1
		}
	}
	return supervisor.Run(supervisor.Options{
		Name:         name,
		Program:      program,
		Prefix:       supervisor.PrefixEgress,
		Listener:     listener,
		LongestPause: time.Second,
		Meanwhile:    "nothing passes",
	})
}

// address returns where the egress daemon listens, by its flags and variables, and false when that
// is wrong, which the egress daemon says itself.
func address(program []string) (host netip.Addr, port int, ok bool) {
	if len(program) == 0 {
		return host, 0, false
	}
	host = netip.IPv4Unspecified()
	if text := supervisor.Setting(program[1:], "host", "EGRESS_HOST", ""); text != "" {
		given, err := netip.ParseAddr(text)
		if err != nil || !given.Unmap().Is4() {
			return host, 0, false
		}
		host = given.Unmap()
	}
	port, err := strconv.Atoi(supervisor.Setting(program[1:], "port", "EGRESS_PORT", defaultPort))
	return host, port, err == nil && port >= 0 && port <= 65535
}
