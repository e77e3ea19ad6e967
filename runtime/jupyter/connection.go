package jupyter

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The values of transport in a connection file.
const (
	transportIPC = "ipc"
	transportTCP = "tcp"
)

// maxSocketPath is how long the path of a unix socket may be, with room for the NUL that ends it.
const maxSocketPath = 107

// connection is what a kernel and its client share: a private folder with the connection file, and with the sockets when the
// transport is ipc.
type connection struct {
	dir  string
	file string
	key  []byte
	info connectionInfo
}

// connectionInfo is the content of a connection file.
type connectionInfo struct {
	Transport       string `json:"transport"`
	IP              string `json:"ip"` // the beginning of the sockets' paths when the transport is ipc
	Shell           int    `json:"shell_port"`
	IOPub           int    `json:"iopub_port"`
	Stdin           int    `json:"stdin_port"`
	Control         int    `json:"control_port"`
	Heartbeat       int    `json:"hb_port"`
	Key             string `json:"key"`
	SignatureScheme string `json:"signature_scheme"`
	KernelName      string `json:"kernel_name"`
}

// newConnection makes a folder in parent, which is the system's folder for temporary files when empty. Its owner calls remove.
func newConnection(parent string, spec kernelspec) (*connection, error) {
	dir, err := os.MkdirTemp(parent, "execd-kernel-") // mode 0700
	if err != nil {
		return nil, err
	}
	c := &connection{dir: dir, file: filepath.Join(dir, "connection.json"), key: []byte(rand.Text())}
	if err := c.fill(spec); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

func (c *connection) fill(spec kernelspec) error {
	c.info = connectionInfo{
		Transport: transportIPC, IP: filepath.Join(c.dir, "socket"), Shell: 1, IOPub: 2, Stdin: 3, Control: 4, Heartbeat: 5,
		Key: string(c.key), SignatureScheme: "hmac-sha256", KernelName: spec.name,
	}
	if _, longest := c.address(channelControl); !speaksIPC(spec) || len(longest) > maxSocketPath {
		ports, err := freePorts(5)
		if err != nil {
			return err
		}
		c.info.Transport, c.info.IP = transportTCP, "127.0.0.1"
		c.info.Shell, c.info.IOPub, c.info.Stdin, c.info.Control, c.info.Heartbeat = ports[0], ports[1], ports[2], ports[3], ports[4]
	}
	content, err := json.Marshal(c.info)
	if err != nil {
		return err
	}
	return os.WriteFile(c.file, content, 0o600)
}

// speaksIPC reports whether the kernel is known to take unix sockets, which need no ports and let no other user in. Jupyter
// documents them, yet many kernels have tcp alone, or name the sockets differently.
func speaksIPC(spec kernelspec) bool {
	for _, arg := range spec.Argv {
		if strings.Contains(arg, "ipykernel") {
			return true
		}
	}
	return false
}

// address returns what net.Dial needs to reach a channel of the kernel.
func (c *connection) address(of channel) (network, address string) {
	port := map[channel]int{channelShell: c.info.Shell, channelIOPub: c.info.IOPub, channelControl: c.info.Control}[of]
	if c.info.Transport == transportIPC {
		return "unix", c.info.IP + "-" + strconv.Itoa(port)
	}
	return "tcp", net.JoinHostPort(c.info.IP, strconv.Itoa(port))
}

func (c *connection) remove() error { return os.RemoveAll(c.dir) }

// freePorts returns ports of 127.0.0.1 that nobody listens on. Somebody may take one before the kernel does: Jupyter's protocol
// has no way to tell afterwards which ports a kernel took, so the caller tries again.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer listener.Close() // all stay open until the last is found, so that they differ
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
