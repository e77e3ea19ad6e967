package api_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/execd/internal/shell"
	"sandbox.internal/internal/log"
	"sandbox.internal/internal/process"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/test/wait"
)

// contract is the document that every answer is held to; it is never changed.
var contract = sync.OnceValues(document.LoadExecd)

// TestMain lets the test binary stand in for execd where a test needs the daemon, or its shell, in
// a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sh":
			os.Exit(shell.Main(os.Args[2:]))
		case "daemon":
			os.Exit(runChild())
		}
	}
	// Under nohup a SIGHUP is ignored, and terminals would inherit that; a handler is not
	// inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	goleak.VerifyTestMain(m)
}

// daemon is an execd that listens, and a client of it whose every answer is checked against the
// contract.
type daemon struct {
	url      string
	http     *http.Client
	client   *gen.Client
	contract *conform.Transport
}

// start runs execd in this process until the test ends.
func start(t *testing.T) *daemon {
	t.Helper()
	return startWith(t, config.Settings{})
}

func startWith(t *testing.T, settings config.Settings) *daemon {
	t.Helper()
	settings.Host, settings.CommandLogLimit = "127.0.0.1", cmp.Or(settings.CommandLogLimit, 1<<30)
	// Other processes of the machine compute, of which some are in the test's control group.
	still := app.Machine{Used: func() (time.Duration, error) { return 0, nil }}
	execd, err := app.NewOn(still, settings, zerolog.Nop())
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- execd.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, wait.For(t, "the end of the daemon", stopped))
	})
	return connect(t, "http://"+execd.Addr(), newTransport(t))
}

func connect(t *testing.T, url string, transport *conform.Transport) *daemon {
	t.Helper()
	d := &daemon{url: url, http: &http.Client{Transport: transport, Timeout: wait.Patience()}, contract: transport}
	var err error
	d.client, err = gen.NewClient(url, gen.WithHTTPClient(d.http))
	must(t, err)
	return d
}

func newTransport(t *testing.T) *conform.Transport {
	t.Helper()
	doc, err := contract()
	must(t, err)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return conform.New(doc, base, t)
}

// child is an execd in a process of its own, for what must not happen to the test's.
type child struct {
	Args         []string          // flags of the daemon
	Env          []string          // added to the test's
	Tmpfs        map[string]string // directories that become file systems of their own, with their mount options
	Bind         []string          // files that become mount points
	Full         map[string]string // directories that become overlays whose upper layer, a file system in the other directory, is full
	Unprivileged bool              // run without any rights
	// Users is how many users and groups its user namespace has, from 0 on; 0 leaves it in the
	// test's.
	Users int
	// Descriptors is how many files may be open; 0 is the usual limit.
	Descriptors uint64
	// Alone forbids the child to have any process but itself.
	Alone bool

	pid    int
	output output
	kill   func() // ends it at once, as the kernel does when there is no memory left
}

// start runs the child until the test ends. Its mounts are seen by it alone and vanish with it.
func (c *child) start(t *testing.T, transport *conform.Transport) *daemon {
	t.Helper()
	setup, err := json.Marshal(c)
	must(t, err)
	process := exec.Command("/proc/self/exe", append([]string{"daemon"}, c.Args...)...)
	process.Env = append(append(os.Environ(), c.Env...), "TEST_CHILD="+string(setup))
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	root := os.Geteuid() == 0
	if c.Unprivileged && root {
		process.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		process.Dir = "/" // others may not be able to enter this one
	}
	if c.mounts() {
		process.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	if users := c.Users; users > 0 || process.SysProcAttr.Cloneflags != 0 && !root {
		if !root {
			users = 1 // more are not ours to map
		}
		process.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		process.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: users}}
		process.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: users}}
	}
	process.Stdout, process.Stderr = &c.output, &c.output
	must(t, process.Start())
	c.pid = process.Process.Pid
	killed := false
	c.kill = func() {
		must(t, process.Process.Kill())
		_ = process.Wait() // that it was killed is its error
		killed = true
	}
	t.Cleanup(func() {
		if !killed {
			process.Process.Signal(syscall.SIGTERM)
			late := time.AfterFunc(wait.Patience(), func() { _ = process.Process.Kill() }) // Wait returns that it was killed
			defer late.Stop()
			must(t, process.Wait())
		}
	})
	var listening struct{ Address string }
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the child said:\n%s", c.output.bytes())
		}
	})
	wait.Until(t, "the child listens", func() bool {
		for line := range bytes.Lines(c.output.bytes()) {
			if json.Unmarshal(line, &listening) == nil && listening.Address != "" {
				return true
			}
		}
		return false
	})
	return connect(t, "http://"+listening.Address, transport)
}

// runChild is the child's side.
func runChild() int {
	var setup child
	err := json.Unmarshal([]byte(os.Getenv("TEST_CHILD")), &setup)
	if err == nil {
		err = setup.mount()
	}
	os.Unsetenv("TEST_CHILD")
	if err == nil && setup.Descriptors > 0 {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: setup.Descriptors, Max: setup.Descriptors})
	}
	if err == nil && setup.Alone {
		process.ReserveThreads(runtime.GOMAXPROCS(0), 64)
		awaitThreads()
		err = unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1, Max: 1})
	}
	if err == nil {
		go reportHolds()
		err = serveChild(os.Args[2:])
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// awaitThreads waits until no thread has been made for a fifth of a second: the runtime makes some
// after the goroutine that needed one has gone on, and ends the process when it may not.
func awaitThreads() {
	had, since := 0, time.Now()
	wait.Within(wait.Patience(), func() bool {
		threads, _ := os.ReadDir("/proc/self/task")
		if len(threads) != had {
			had, since = len(threads), time.Now()
		}
		return time.Since(since) >= time.Second/5
	})
}

func (c *child) mounts() bool { return len(c.Tmpfs)+len(c.Bind)+len(c.Full) > 0 }

func (c *child) mount() error {
	if c.mounts() {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return err
		}
	}
	for dir, options := range c.Tmpfs {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
			return err
		}
	}
	for _, path := range c.Bind {
		if err := syscall.Mount(path, path, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	for dir, room := range c.Full {
		if err := mountFull(dir, room); err != nil {
			return err
		}
	}
	return nil
}

func mountFull(dir, room string) error {
	err := syscall.Mount("tmpfs", room, "tmpfs", 0, "nr_inodes=16")
	for _, name := range []string{"/upper", "/work"} {
		if err == nil {
			err = os.Mkdir(room+name, 0o755)
		}
	}
	if err == nil {
		err = syscall.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+room+"/upper,workdir="+room+"/work")
	}
	for i := 0; err == nil; i++ {
		err = os.WriteFile(room+"/"+strconv.Itoa(i), nil, 0o600)
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

func serveChild(args []string) error {
	settings, err := config.Parse(append([]string{"--host=127.0.0.1", "--port=0"}, args...), os.Getenv, os.Stderr)
	if err != nil {
		return err
	}
	logger, closer, err := log.New(log.Options{
		Level: settings.LogLevel, File: settings.LogFile, Secrets: []string{settings.AccessToken, settings.JupyterToken},
	}, os.Stdout)
	if err != nil {
		return err
	}
	defer closer.Close()
	execd, err := app.New(settings, logger)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return execd.Run(ctx)
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	data []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, p...)
	return len(p), nil
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.data)
}

// body reads an answer to its end and expects success.
func body(t *testing.T, response *http.Response, err error) []byte {
	t.Helper()
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", response.StatusCode, data)
	}
	return data
}

// status asks for a command's status.
func (d *daemon) status(t *testing.T, id string) gen.CommandStatus {
	t.Helper()
	response, err := d.client.GetCommandStatus(t.Context(), id)
	var status gen.CommandStatus
	must(t, json.Unmarshal(body(t, response, err), &status))
	return status
}

// background starts a command in the background and returns its id.
func (d *daemon) background(t *testing.T, line string) string {
	t.Helper()
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: line, Background: new(true)})
	var accepted gen.CommandAccepted
	must(t, json.Unmarshal(body(t, response, err), &accepted))
	if header := response.Header.Get("X-Command-ID"); header != accepted.ID {
		t.Fatalf("X-Command-ID is %q, the body says %q", header, accepted.ID)
	}
	return accepted.ID
}

func (d *daemon) interrupt(t *testing.T, id string) {
	t.Helper()
	response, err := d.client.InterruptCommand(t.Context(), &gen.InterruptCommandParams{ID: id})
	body(t, response, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, content string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// header sets a header of one request.
func header(name, value string) gen.RequestEditorFn {
	return func(_ context.Context, request *http.Request) error {
		request.Header.Set(name, value)
		return nil
	}
}
