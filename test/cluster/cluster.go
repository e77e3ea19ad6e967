// Package cluster gives tests a real Kubernetes cluster: the one that KUBECONFIG names, or one of
// their own, made by the scripts of this directory from programs that build.sh keeps outside the
// repository.
//
// A package that needs one starts it in TestMain and stops it there:
//
//	func TestMain(m *testing.M) {
//		flag.Parse()
//		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
//		c, err := cluster.Start(ctx, cluster.Options{Mode: cluster.API})
//		...
//	}
//
// Several clusters may run beside each other. When the process that started one ends, even by
// SIGKILL, the cluster goes with it.
package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandbox.internal/test/program"
)

// Mode says how much of a cluster a test needs.
type Mode string

const (
	// Node is a whole cluster with one real node, whose pods the test reaches by their addresses.
	// It needs root.
	Node Mode = "node"
	// API is an API server and etcd alone, for tests of resources: nothing makes pods, service
	// accounts or garbage collection happen. It is up in a few seconds and needs no root.
	API Mode = "api"
	// Fake is a control plane without a kubelet. Start plays its nodes, and reports every pod as
	// Ready. It needs no root.
	Fake Mode = "fake"
)

// Component is a process of a cluster that a test may end and start again.
type Component string

// The components. Mode API has the first two, Fake all but Containerd and Kubelet, Node all.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Containerd        Component = "containerd"
	Kubelet           Component = "kubelet"
)

// ErrForeign is what methods that would harm a cluster return for one that the tests did not start.
var ErrForeign = errors.New("this is the cluster of KUBECONFIG: its components are left alone")

// Options say what Start starts.
type Options struct {
	// Mode is Node if empty.
	Mode Mode
	// Nodes is how many nodes are played in mode Fake; 0 means 10.
	Nodes int
	// Images of the Docker Engine that the node shall have, like "sandbox/busybox:dev". A cluster
	// of KUBECONFIG must have them already.
	Images []string
	// Private keeps the tests away from the cluster of KUBECONFIG, because they do harm: they end
	// components, or need to be alone.
	Private bool
	// Log gets what the scripts say: a few lines. It is standard error if nil.
	Log io.Writer
}

// Cluster is a cluster that is up.
type Cluster struct {
	// Kubeconfig is the path of a file with an administrator's access.
	Kubeconfig string
	// Directory holds the logs (log/NAME.log) and programs (bin/NAME) of a cluster that Start
	// started; else it is empty.
	Directory string

	mode    Mode
	nodes   io.Closer // ends the program that plays the nodes of mode Fake
	scripts string
	log     io.Writer

	rendering sync.Mutex
	rendered  string // the chart, for Accounts; empty until it is asked for
}

// Start returns a cluster that is ready. It is the one that KUBECONFIG names, if mode Node is asked
// for and it need not be a private one. Otherwise Start makes one, and first builds what it is made
// of, if that was not done before; this takes minutes, so `make test-all` does it ahead of the
// tests. The caller calls Stop, also when tests fail.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c := &Cluster{mode: options.Mode, log: options.Log}
	if c.mode == "" {
		c.mode = Node
	}
	if c.log == nil {
		c.log = os.Stderr
	}
	var err error
	if c.scripts, err = findScripts(); err != nil {
		return nil, err
	}
	if given := os.Getenv("KUBECONFIG"); given != "" && c.mode == Node && !options.Private {
		c.Kubeconfig = given
		if _, err := c.Kubectl(ctx, nil, "get", "--raw", "/readyz"); err != nil {
			return nil,
				fmt.Errorf(
					"the cluster of KUBECONFIG=%s is not ready (unset it to have one made): %w",
					given, err)
		}
		return c, nil
	}
	if err := program.UseImages(strings.Join(options.Images, " ")); err != nil {
		return nil, err
	}
	if err := c.run(ctx, "build.sh"); err != nil {
		return nil, err
	}
	parent, err := os.MkdirTemp("", "sandbox-cluster-")
	if err != nil {
		return nil, err
	}
	directory := filepath.Join(parent, "c")
	args := []string{"--mode", string(c.mode), "--owner", strconv.Itoa(os.Getpid())}
	for _, image := range options.Images {
		args = append(args, "--image", image)
	}
	if err := c.run(ctx, "up.sh", append(args, directory)...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(parent))
	}
	c.Directory, c.Kubeconfig = directory, filepath.Join(directory, "kubeconfig")
	if c.mode == Fake {
		if err := c.startNodes(ctx, cmp.Or(options.Nodes, 10)); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// startNodes starts the program that plays count nodes, and returns when it has made them.
func (c *Cluster) startNodes(ctx context.Context, count int) error {
	directory := filepath.Join(c.Directory, "bin")
	if err := program.Build(ctx, directory, "sandbox.internal/test/cluster/nodes"); err != nil {
		return err
	}
	command := exec.Command(filepath.Join(directory, "nodes"), "--kubeconfig", c.Kubeconfig,
		"--nodes", strconv.Itoa(count))
	command.Stderr = c.log
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	c.nodes = closer(func() error { return errors.Join(input.Close(), command.Wait()) })
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return fmt.Errorf("the nodes could not be made: %w", err)
	}
	return nil
}

type closer func() error

// Close implements io.Closer.
func (c closer) Close() error { return c() }

// Stop removes a cluster that Start made, with everything in it; one of KUBECONFIG stays. It works
// in whatever state the cluster is, and needs no context: a test that was cancelled cleans up, too.
// Calling it again does nothing.
func (c *Cluster) Stop() error {
	if c.Directory == "" {
		return nil
	}
	if c.nodes != nil {
		_ = c.nodes.Close()
		c.nodes = nil
	}
	if err := c.run(context.Background(), "down.sh", c.Directory); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(c.Directory))
}

// Kill ends a component with SIGKILL and returns when its process is gone. Pods outlive Kubelet and
// Containerd.
func (c *Cluster) Kill(ctx context.Context, name Component) error {
	return c.component(ctx, "kill", name)
}

// Restore starts a component again and returns when it works: the API server is ready, the kubelet
// is healthy, the others take connections. A component that lives is left alone.
func (c *Cluster) Restore(ctx context.Context, name Component) error {
	return c.component(ctx, "start", name)
}

// Restart is Kill, then Restore.
func (c *Cluster) Restart(ctx context.Context, name Component) error {
	return c.component(ctx, "restart", name)
}

func (c *Cluster) component(ctx context.Context, verb string, name Component) error {
	if c.Directory == "" {
		return fmt.Errorf("%s %s: %w", verb, name, ErrForeign)
	}
	return c.run(ctx, "component.sh", verb, string(name), c.Directory)
}

// Kubectl runs kubectl as an administrator of the cluster, with a standard input that may be nil,
// and returns its standard output. The error holds what it said.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	return c.output(c.Command(ctx, "kubectl", args...), stdin)
}

// Helm runs helm, likewise.
func (c *Cluster) Helm(ctx context.Context, args ...string) ([]byte, error) {
	return c.output(c.Command(ctx, "helm", args...), nil)
}

// Command prepares one of the programs that came with the cluster (kubectl, helm) or, for a cluster
// of KUBECONFIG, one of PATH. The environment of the command names the cluster.
func (c *Cluster) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	path := program
	if c.Directory != "" {
		path = filepath.Join(c.Directory, "bin", program)
	}
	command := exec.CommandContext(ctx, path, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	if c.Directory != "" {
		// kubectl's cache of a server belongs to this cluster: the next one may have the same
		// address.
		command.Env = append(command.Env, "KUBECACHEDIR="+filepath.Join(c.Directory, "kubectl"))
	}
	return command
}

func (c *Cluster) output(command *exec.Cmd, stdin io.Reader) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = stdin, &stdout, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// run runs one of the scripts; the error holds what it said.
func (c *Cluster) run(ctx context.Context, script string, args ...string) error {
	var said bytes.Buffer
	command := exec.CommandContext(ctx, filepath.Join(c.scripts, script), args...)
	command.Stdout = io.MultiWriter(c.log, &said)
	command.Stderr = command.Stdout
	// An interrupted script takes down what it had put up.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = time.Minute
	if err := command.Run(); err != nil {
		return fmt.Errorf("test/cluster/%s: %w: %s", script, errors.Join(err, ctx.Err()),
			bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// findScripts returns the directory of the scripts, as seen from a test, which runs in the
// directory of its package. Having looked at them, the go command repeats the test when one has
// changed.
func findScripts() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for directory := start; ; directory = filepath.Dir(directory) {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			scripts, err := filepath.Glob(filepath.Join(directory, "test", "cluster", "*.sh"))
			if err == nil && len(scripts) > 0 {
				for _, script := range scripts {
					if _, err := os.ReadFile(script); err != nil {
						return "", err
					}
				}
				return filepath.Join(directory, "test", "cluster"), nil
			}
		}
		if directory == filepath.Dir(directory) {
			return "", fmt.Errorf("no test/cluster above %s: run the tests inside the repository",
				start)
		}
	}
}
