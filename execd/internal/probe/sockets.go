package probe

import "syscall"

// Sockets are the families of sockets, of those that have led from containers into the kernel and
// that few programs use, that the process can open: no filter refuses them, and the kernel has
// them.
type Sockets struct {
	Open []string `json:"open_sockets"` // such as AF_ALG; never null
}

// Numbers of families, which package syscall lacks.
const (
	afRxRPC = 33
	afALG   = 38
	afVSock = 40
)

// trySockets tries to open a socket of each family.
func trySockets() Sockets {
	found := Sockets{Open: []string{}}
	for _, try := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"AF_RXRPC", afRxRPC, syscall.SOCK_DGRAM, syscall.AF_INET},
		{"AF_ALG", afALG, syscall.SOCK_SEQPACKET, 0},
		{"AF_VSOCK", afVSock, syscall.SOCK_STREAM, 0},
	} {
		if fd, err := syscall.Socket(try.family, try.kind, try.protocol); err == nil {
			_ = syscall.Close(fd)
			found.Open = append(found.Open, try.name)
		}
	}
	return found
}
