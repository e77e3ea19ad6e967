package oci_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

const (
	// serviceVariable makes this program a service that makes and removes containers until it is
	// killed; its value is a job as JSON.
	serviceVariable = "OCI_TEST_SERVICE"
	// codeLabel is the exit code that a container has to end with.
	codeLabel = "oci-test/code"
	workers   = 4
	// killRounds is how often TestKill kills at least, however slow the machine is.
	killRounds = 6
)

// TestKill kills the keeper, the service, and both, at random moments while containers are made and
// removed. No exit code is lost, and nothing is left.
func TestKill(t *testing.T) {
	for _, handler := range runtimes(t) {
		for name, victims := range map[string]victims{
			"keeper": {keeper: true}, "service": {service: true}, "both": {keeper: true, service: true},
		} {
			t.Run(handler+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, handler)
				s.DiskBytes = 64 << 20 // loop devices are one thing more that may be left
				killWhileWorking(t, s, victims)
				s.checkNothingLeft(t)
			})
		}
	}
}

type victims struct{ keeper, service bool }

// job is what a service does.
type job struct {
	Site    site
	ImageID string
	Seed    uint64
}

func killWhileWorking(t *testing.T, s site, victims victims) {
	t.Helper()
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	closeEngine(t, e)
	rounds, started, failed := 0, 0, 0
	numbers := random.New(t)
	longest := time.Second // until something is killed
	limit := wait.Deadline()
	for end := time.Now().Add(random.Long(4*time.Second, 10*time.Second)); time.Now().Before(end) ||
		(rounds < killRounds || started == 0) && time.Now().Before(limit); rounds++ {
		service := startService(t, job{s, imageID, numbers.Uint64()})
		for { // the keeper can be killed several times in the life of a service
			pause := time.NewTimer(time.Duration(numbers.Int64N(int64(longest))))
			<-pause.C // the moment is to be any
			if victims.keeper {
				killKeeper(t, s)
			}
			if victims.service || !time.Now().Before(end) {
				break
			}
			rounds++
		}
		service.kill(t)
		started, failed = started+service.started, failed+service.failed
		if started == 0 { // a slow machine
			longest = min(2*longest, time.Minute)
		}
	}
	t.Logf("%d rounds, %d containers started, %d starts failed", rounds, started, failed)
	if started == 0 {
		t.Error("no container was started at all")
	}
	e = s.mustOpen(t)
	defer closeEngine(t, e)
	all, err := e.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Status != engine.StatusCreated {
			checkCode(t.Errorf, waitEnd(t, e, c.ID))
		}
	}
	removeAll(t, e)
}

func checkCode(report func(string, ...any), ended engine.Container) {
	if want := ended.Labels[codeLabel]; strconv.Itoa(ended.ExitCode) != want {
		report("container %s ended with %d, want %s", ended.ID, ended.ExitCode, want)
	}
}

// killKeeper kills the process that listens on the keeper's socket, if there is one.
func killKeeper(t *testing.T, s site) {
	t.Helper()
	if pid, err := keeper.ListenerPID(s.RunDirectory); err == nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// service is this program in another process.
type service struct {
	command *exec.Cmd
	stderr  strings.Builder
	done    chan struct{} // closed when everything it wrote was read

	started, failed int
	wrong           []string
}

func startService(t *testing.T, j job) *service {
	t.Helper()
	content, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{command: exec.Command("/proc/self/exe"), done: make(chan struct{})}
	s.command.Env = append(os.Environ(), serviceVariable+"="+string(content))
	s.command.Stderr = &s.stderr
	output, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go s.read(output, sync.OnceFunc(func() { close(ready) }))
	select {
	case <-ready:
	case <-s.done:
		t.Errorf("the service has ended: %v\n%s", s.command.Wait(), s.stderr.String())
		t.FailNow()
	}
	return s
}

// read counts what the service reports, a word a line.
func (s *service) read(output io.Reader, ready func()) {
	defer close(s.done)
	for lines := bufio.NewScanner(output); lines.Scan(); {
		switch word, _, _ := strings.Cut(lines.Text(), " "); word {
		case "ready":
			ready()
		case "started":
			s.started++
		case "failed":
			s.failed++
		default:
			s.wrong = append(s.wrong, lines.Text())
		}
	}
}

func (s *service) kill(t *testing.T) {
	t.Helper()
	_ = s.command.Process.Kill()
	wait.For(t, "the end of the process", s.done)
	_ = s.command.Wait()
	for _, line := range s.wrong {
		t.Error(line)
	}
	if text := s.stderr.String(); text != "" {
		t.Logf("the service wrote: %s", text[:min(len(text), 4000)])
	}
}

// serve is the service: it looks at the containers that there are, and makes others.
func serve(text string) {
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = work(context.Background(), j)
	}
	_, _ = fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func work(ctx context.Context, j job) error {
	e, err := j.Site.open(ctx, io.Discard)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	left, err := e.List(ctx, nil)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	for _, c := range left {
		group.Go(func() { finish(ctx, e, c) })
	}
	numbers := random.From(j.Seed)
	for range workers {
		group.Go(func() {
			for {
				live(ctx, e, j.ImageID, numbers)
			}
		})
	}
	group.Wait()
	return errors.New("unreachable")
}

// live makes a container that ends by itself, and removes it.
func live(ctx context.Context, e *oci.Engine, imageID string, numbers *rand.Rand) {
	code := numbers.IntN(100) + 1
	spec := probe(imageID, "later", strconv.Itoa(numbers.IntN(200)), strconv.Itoa(code))
	spec.Labels = map[string]string{codeLabel: strconv.Itoa(code)}
	spec.Network, spec.Publish = engine.NetworkOwn, []int{8080}
	id, err := e.Create(ctx, spec)
	if err != nil {
		fmt.Println("wrong: create:", oneLine(err))
		return
	}
	if err := e.Start(ctx, id); err != nil {
		if !errors.Is(err, engine.ErrUnavailable) {
			fmt.Println("wrong: start:", oneLine(err))
		}
		fmt.Println("failed")
		if err := e.Remove(ctx, id); err != nil {
			fmt.Println("wrong: remove:", oneLine(err))
		}
		return
	}
	fmt.Println("started")
	c, err := e.Inspect(ctx, id)
	if err != nil {
		fmt.Println("wrong: inspect:", oneLine(err))
		return
	}
	finish(ctx, e, c)
}

// finish waits for the end of a container, looks at its exit code, and removes it.
func finish(ctx context.Context, e *oci.Engine, c engine.Container) {
	if c.Status != engine.StatusCreated {
		log, err := e.OpenLog(ctx, c.ID, engine.LogOptions{Follow: true})
		if err == nil {
			_, err = io.Copy(io.Discard, log) // it ends with the container
			_ = log.Close()
		}
		if err == nil {
			c, err = e.Inspect(ctx, c.ID)
		}
		if err != nil {
			fmt.Println("wrong: wait:", oneLine(err))
			return
		}
		checkCode(func(format string, values ...any) { fmt.Printf("wrong: "+format+"\n", values...) }, c)
	}
	if err := e.Remove(ctx, c.ID); err != nil {
		fmt.Println("wrong: remove:", oneLine(err))
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
