package local_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

var crashTime = flag.Duration("crash", 0, "how long TestCrash kills, at least; 0: as long as the command that runs it wants (random.Long)")

// crashRounds is how often TestCrash kills at least, however slow the machine is.
const crashRounds = 8

// TestCrash kills the service, the keeper, or both at random moments, while images are pulled,
// sandboxes are created, paused, resumed and deleted and others end by themselves, and starts the
// service again on the same records. Every accepted sandbox must be usable, or have ended as it was
// asked to, with its own exit code; and when all are deleted, neither the kernel nor the disk has
// anything of the engine.
func TestCrash(t *testing.T) {
	t.Parallel()
	on := newMachines()
	s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true})
	long := cmp.Or(*crashTime, random.Long(15*time.Second, 40*time.Second))
	numbers := random.New(t)
	st := &crashRun{s: s, long: long, code: map[string]int{}, deleted: map[string]bool{}}
	images := newSlowRegistry(t)
	rounds, kills := 0, 0
	for began := time.Now(); rounds < crashRounds || time.Since(began) < long; rounds++ {
		after := time.Duration(numbers.Int64N(int64(600 * time.Millisecond)))
		var requests sync.WaitGroup
		for i := range 4 {
			image, code := busyboxImage, 0
			switch i {
			case 0:
				code = numbers.IntN(100) + 1
			case 1:
				image = images.push(t)
			}
			requests.Go(func() { st.create(t, image, code) })
		}
		many := st.alive() > 40
		for _, id := range st.some(numbers, 6) {
			switch n := numbers.IntN(3); {
			case n == 0 || many:
				requests.Go(func() { st.act(t, http.MethodDelete, id, "") })
			case n == 1:
				requests.Go(func() { st.act(t, http.MethodPost, id, "/pause") })
			default:
				requests.Go(func() { st.act(t, http.MethodPost, id, "/resume") })
			}
		}
		time.Sleep(after) // the moment of the crash, not a wait for something
		what := numbers.IntN(3)
		if what != 0 {
			kills += on.of(s.Instance).killKeeper(t)
		}
		if what != 1 {
			s.Kill()
			kills++
		}
		requests.Wait()
		if what != 1 {
			s.Boot(t)
		}
	}
	t.Logf("%d rounds, %d processes killed, %d sandboxes accepted", rounds, kills, len(st.accepted))
	if len(st.accepted) < 10 {
		t.Fatal("too little happened: this proves nothing")
	}
	st.check(t)
	s.DeleteAll(t)
	for _, sandbox := range s.Everything(t) {
		if !conformance.Final(s.Get(t, sandbox.ID).Status.State) {
			s.Await(t, sandbox.ID, "Terminated")
		}
	}
	on.of(s.Instance).awaitEmptyTrash(t) // an engine that closes leaves the rest to the next one
	s.Halt(t)
	on.of(s.Instance).CheckNothingLeft(t)
}

// crashRun is what a service that is killed was asked to do, and what it answered.
type crashRun struct {
	s        *conformance.Service
	long     time.Duration // it goes on for, at least
	mu       sync.Mutex
	accepted []string
	code     map[string]int  // of those that end by themselves
	deleted  map[string]bool // asked to be deleted; true: answered 204
}

// create asks for a sandbox, which ends by itself if it is given an exit code.
func (st *crashRun) create(t *testing.T, image string, code int) {
	command := "sleep 3600"
	if code != 0 {
		command = fmt.Sprintf("sleep 0.3; exit %d", code)
	}
	request := conformance.Request(image, "sh", "-c", command)
	request.Timeout = int((st.long + 10*time.Minute).Seconds()) // none may expire
	answer, err := st.s.Try(http.MethodPost, "/v1/sandboxes", conformance.Encode(t, request))
	if err != nil {
		return // killed before it answered: nothing was promised
	}
	created, err := conformance.Decode[lifecycle.CreatedSandbox](answer)
	if err != nil {
		t.Errorf("create: %v", err)
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.accepted = append(st.accepted, created.ID)
	if code != 0 {
		st.code[created.ID] = code
	}
}

func (st *crashRun) act(t *testing.T, method, id, path string) {
	answer, err := st.s.Try(method, "/v1/sandboxes/"+id+path, "")
	if method != http.MethodDelete {
		return // whether it was possible depends on the moment
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deleted[id] = st.deleted[id] || err == nil && answer.Status == http.StatusNoContent
}

// alive returns how many sandboxes there may be that do not end by themselves.
func (st *crashRun) alive() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.accepted) - len(st.code) - len(st.deleted)
}

// some picks sandboxes that do not end by themselves.
func (st *crashRun) some(random *rand.Rand, count int) []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	var picked []string
	for _, i := range random.Perm(len(st.accepted)) {
		id := st.accepted[i]
		_, asked := st.deleted[id]
		if _, ends := st.code[id]; !ends && !asked && len(picked) < count {
			picked = append(picked, id)
		}
	}
	return picked
}

// check follows every accepted sandbox until it has settled.
func (st *crashRun) check(t *testing.T) {
	for _, id := range st.accepted {
		answered, asked := st.deleted[id]
		code, ends := st.code[id]
		switch {
		case answered:
			if got := st.s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
				t.Errorf("%s was deleted, its reason is %s", id, got.Reason)
			}
			continue
		case ends:
			if got := st.s.Await(t, id, "Failed").Status; !strings.Contains(got.Message, "exit code "+strconv.Itoa(code)) {
				t.Errorf("%s has ended with %s (%s), its exit code is %d", id, got.Reason, got.Message, code)
			}
			continue
		}
		switch status := st.s.Settled(t, id); {
		case status.State == "Running":
			st.s.Enter(t, id).Want(t, "echo usable", "usable\n")
		case status.State == "Paused":
		case status.State == "Terminated" && asked:
		default:
			t.Errorf("%s is %s (%s: %s)", id, status.State, status.Reason, status.Message)
		}
	}
}

// killKeeper kills the process that starts the engine's containers, if there is one at this moment,
// and returns how many it has killed.
func (m machine) killKeeper(t *testing.T) (killed int) {
	t.Helper()
	for pid, line := range localengine.CommandLines() {
		if !strings.Contains(line, "sandbox-keeper\x00--directory\x00/run/sandbox-local/"+m.Key()+"\x00") {
			continue
		}
		switch err := unix.Kill(pid, unix.SIGKILL); err {
		case nil:
			killed++
		case unix.ESRCH:
		default:
			t.Error(err)
		}
	}
	return killed
}

func (m machine) awaitEmptyTrash(t *testing.T) {
	t.Helper()
	wait.Until(t, "what was removed is gone from the disk", func() bool {
		trash, err := os.ReadDir(filepath.Join(m.Directory, "trash"))
		return err == nil && len(trash) == 0
	})
}
