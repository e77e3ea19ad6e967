package jupyter

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"sandbox.internal/internal/remove"
)

// ipythonConfig keeps IPython's kernel from losing output. An image has it in /etc/ipython, for
// kernels that are not ours.
//
//go:embed ipython_kernel_config.py
var ipythonConfig []byte

// The values of transport in a connection file.
const (
	transportIPC = "ipc"
	transportTCP = "tcp"
)

// maxSocketPath is how long the path of a unix socket may be, with room for the NUL that ends it.
const maxSocketPath = 107

// connection is what a kernel and its client share: a private directory with the connection file,
// and with the sockets when the transport is ipc.
type connection struct {
	dir  string
	file string
	lock *os.File // the directory itself, locked for as long as the connection is in use
	key  []byte
	info connectionInfo
}

// connectionInfo is the content of a connection file.
type connectionInfo struct {
	Transport string `json:"transport"`
	// the beginning of the sockets' paths when the transport is ipc
	IP              string `json:"ip"`
	Shell           int    `json:"shell_port"`
	IOPub           int    `json:"iopub_port"`
	Stdin           int    `json:"stdin_port"`
	Control         int    `json:"control_port"`
	Heartbeat       int    `json:"hb_port"`
	Key             string `json:"key"`
	SignatureScheme string `json:"signature_scheme"`
	KernelName      string `json:"kernel_name"`
}

// directoryPattern is what the directories of connections are called.
const directoryPattern = "execd-kernel-*"

// newConnection makes a directory in parent, which is the system's directory for temporary files
// when empty. Its owner calls remove.
func newConnection(parent string, spec kernelspec) (*connection, error) {
	c := &connection{key: []byte(rand.Text())}
	for c.lock == nil {
		if err := c.makeDirectory(parent); err != nil {
			return nil, err
		}
	}
	c.file = filepath.Join(c.dir, "connection.json")
	if err := c.fill(spec); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// makeDirectory makes the directory and locks it. Between the two, another process's sweep may
// remove it: then lock is nil.
func (c *connection) makeDirectory(parent string) error {
	dir, err := os.MkdirTemp(parent, directoryPattern) // mode 0700
	if err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return errors.Join(err, lock.Close(), os.Remove(dir))
	}
	if _, err := os.Stat(dir); err != nil {
		return lock.Close()
	}
	c.dir, c.lock = dir, lock
	return nil
}

// sweepConnections removes the directories that an execd left behind that could not clean up. Their
// locks ended with it, as its kernels did.
func sweepConnections(parent string) error {
	if parent == "" {
		parent = os.TempDir()
	}
	dirs, err := filepath.Glob(filepath.Join(parent, directoryPattern))
	if err != nil {
		return err
	}
	var failures []error
	for _, dir := range dirs {
		lock, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue // another user's, just gone, or no directory: anyone may make a file of such a name
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			failures = append(failures, remove.All(context.Background(), dir))
		}
		lock.Close()
	}
	return errors.Join(failures...)
}

func (c *connection) fill(spec kernelspec) error {
	c.info = connectionInfo{
		Transport: transportIPC, IP: filepath.Join(c.dir, "socket"), Shell: 1, IOPub: 2, Stdin: 3,
		Control: 4, Heartbeat: 5,
		Key: string(c.key), SignatureScheme: "hmac-sha256", KernelName: spec.name,
	}
	if _, longest := c.address(channelControl); !isIPython(spec) || len(longest) > maxSocketPath {
		ports, err := freePorts(5)
		if err != nil {
			return err
		}
		c.info.Transport, c.info.IP = transportTCP, "127.0.0.1"
		c.info.Shell, c.info.IOPub, c.info.Stdin, c.info.Control, c.info.Heartbeat = ports[0],
			ports[1], ports[2], ports[3], ports[4]
	}
	content, err := json.Marshal(c.info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file, content, 0o600); err != nil {
		return err
	}
	if isIPython(spec) {
		return os.WriteFile(c.configFile(), ipythonConfig, 0o600)
	}
	return nil
}

func (c *connection) configFile() string { return filepath.Join(c.dir, "ipython_kernel_config.py") }

// argv returns the command line of a kernel of the spec that is to use this connection.
func (c *connection) argv(spec kernelspec) []string {
	argv := spec.argv(c.file)
	if isIPython(spec) {
		argv = append(argv, "--config="+c.configFile())
	}
	return argv
}

// isIPython reports whether the kernel is IPython's own. That one is known to take unix sockets,
// which need no ports and are closed to other users: Jupyter documents them, yet many kernels have
// tcp alone, or name the sockets differently. And it takes our settings.
func isIPython(spec kernelspec) bool {
	return slices.Contains(spec.Argv, "ipykernel_launcher") ||
		slices.Contains(spec.Argv, "ipykernel")
}

// address returns what net.Dial needs to reach a channel of the kernel.
func (c *connection) address(of channel) (network, address string) {
	port := map[channel]int{channelShell: c.info.Shell, channelIOPub: c.info.IOPub,
		channelControl: c.info.Control}[of]
	if c.info.Transport == transportIPC {
		return "unix", c.info.IP + "-" + strconv.Itoa(port)
	}
	return "tcp", net.JoinHostPort(c.info.IP, strconv.Itoa(port))
}

func (c *connection) remove() error {
	return errors.Join(remove.All(context.Background(), c.dir), c.lock.Close())
}

// freePorts returns free ports of 127.0.0.1. Another process may take one before the kernel does:
// Jupyter's protocol does not report which ports a kernel took, so the caller tries again.
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
