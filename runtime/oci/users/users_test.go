package users_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/runtime/oci/users"
)

// makeNamespace returns this process's: what a range has to do with its namespace is tested with the keeper, which makes them.
func makeNamespace([]syscall.SysProcIDMap) (*os.File, error) { return os.Open("/proc/self/ns/user") }

func open(t *testing.T, claims, data string) *users.Pool {
	t.Helper()
	pool, err := users.Open(claims, data, makeNamespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func take(t *testing.T, pool *users.Pool) users.Range {
	t.Helper()
	taken, err := pool.Take()
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// TestTake: ranges do not overlap, what an earlier process has given away is not given again, and what is given back is.
func TestTake(t *testing.T) {
	claims, data := t.TempDir(), t.TempDir()
	before := open(t, claims, data)
	kept := take(t, before).First
	before.Close()
	pool := open(t, claims, data)
	pool.MarkTaken(kept)
	taken := map[int]bool{kept: true}
	var last int
	for range 20 {
		last = take(t, pool).First
		if taken[last] || last%users.Size != 0 {
			t.Errorf("the range at %d is given twice, or overlaps another one", last)
		}
		taken[last] = true
	}
	pool.Release(last)
	if again := take(t, pool).First; again != last {
		t.Errorf("the range at %d is given, and not %d, whose namespace is there", again, last)
	}
	pool.Release(kept)
	pool.Release(kept) // as a removal that is repeated does
}

// TestTakesWhatWasMadeAhead: no container waits for its namespace, as long as they do not come faster than namespaces are made; and none is made
// for containers that come and go.
func TestTakesWhatWasMadeAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		pool, err := users.Open(t.TempDir(), t.TempDir(), func(ids []syscall.SysProcIDMap) (*os.File, error) {
			made++
			return makeNamespace(ids)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		const ahead, few = 8, 4
		pool.Prepare()
		synctest.Wait()
		if made != ahead {
			t.Fatalf("%d are made ahead, want %d", made, ahead)
		}
		seen := map[int]bool{}
		for taken := 1; taken <= 5*few; taken++ {
			first := take(t, pool).First
			if seen[first] {
				t.Errorf("the range at %d is given twice", first)
			}
			seen[first] = true
			synctest.Wait()
			if want := ahead + taken/few*few; made != want {
				t.Errorf("%d are made when %d were taken, want %d", made, taken, want)
			}
		}
		had := made
		for range 5 * ahead {
			first := take(t, pool).First
			synctest.Wait()
			pool.Release(first)
		}
		if made != had {
			t.Errorf("%d are made for containers that came and went", made-had)
		}
	})
}

// TestGivenBackWhileOneIsMade: no more namespaces are kept than are needed.
func TestGivenBackWhileOneIsMade(t *testing.T) {
	const kept = 8
	ahead := false
	made, goOn := make(chan struct{}), make(chan struct{})
	pool, err := users.Open(t.TempDir(), t.TempDir(), func(ids []syscall.SysProcIDMap) (*os.File, error) {
		namespace, err := makeNamespace(ids)
		if ahead {
			made <- struct{}{}
			<-goOn
		}
		return namespace, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	descriptors := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	before := descriptors()
	var taken []int
	for range 2 * kept {
		taken = append(taken, take(t, pool).First)
	}
	ahead = true
	pool.Prepare()
	<-made
	for _, first := range taken {
		pool.Release(first)
	}
	close(goOn)
	for deadline := time.Now().Add(10 * time.Second); descriptors() != before+kept; time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("%d namespaces are kept, want %d", descriptors()-before, kept)
		}
	}
}

// TestTakeAll: when all are taken, that is an error, and one that is given back can be taken.
func TestTakeAll(t *testing.T) {
	pool := open(t, t.TempDir(), t.TempDir())
	first := take(t, pool).First
	for i := range 1023 {
		pool.MarkTaken(first - first%(1024*users.Size) + i*users.Size)
	}
	last := take(t, pool).First
	if _, err := pool.Take(); !errors.Is(err, users.ErrNone) {
		t.Errorf("one more than there are: %v", err)
	}
	pool.Release(last)
	if again := take(t, pool).First; again != last {
		t.Errorf("%d was given back, and %d is given", last, again)
	}
}

// TestServices: services on one host have ids of their own, also after a restart, until they are released or their data is gone.
func TestServices(t *testing.T) {
	claims, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	first, second := take(t, open(t, claims, one)).First, take(t, open(t, claims, two)).First
	if first == second {
		t.Fatal("two services have the same ids")
	}
	if again := take(t, open(t, claims, two)).First; again != second {
		t.Errorf("after a restart a service has the ids at %d, and had those at %d", again, second)
	}
	if err := users.ReleaseBlock(claims, one); err != nil {
		t.Fatal(err)
	}
	if got := take(t, open(t, claims, t.TempDir())).First; got != first {
		t.Errorf("the ids at %d were released, and those at %d are given", first, got)
	}
	if err := os.RemoveAll(two); err != nil {
		t.Fatal(err)
	}
	if got := take(t, open(t, claims, t.TempDir())).First; got != second {
		t.Errorf("the service with the ids at %d is gone, and those at %d are given", second, got)
	}
	for range 13 {
		open(t, claims, t.TempDir())
	}
	if _, err := users.Open(claims, t.TempDir(), makeNamespace); err == nil {
		t.Error("more services have ids than there are blocks")
	}
	if err := users.ReleaseBlock(filepath.Join(claims, "missing"), one); err != nil {
		t.Errorf("release without any claim: %v", err)
	}
}

// TestBeyond: ids beyond a range take the place of its last ones, and no other container gets a namespace that has them.
func TestBeyond(t *testing.T) {
	for _, test := range []struct {
		ids, want []uint32
	}{
		{nil, nil},
		{[]uint32{0, 1000, 65535}, nil},
		{[]uint32{70000, 0, 70000}, []uint32{70000}},
		{[]uint32{65536, 65535}, []uint32{65535, 65536}}, // one takes the place of the other
		{[]uint32{1 << 30, 65534, 65535, 65536}, []uint32{65534, 65535, 65536, 1 << 30}},
	} {
		if got, few := users.Beyond(test.ids); !few || !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, %v, want %v", test.ids, got, few, test.want)
		}
	}
	many := make([]uint32, 100)
	for i := range many {
		many[i] = users.Size + uint32(i)
	}
	if _, few := users.Beyond(many); few {
		t.Error("a hundred ids are not too many")
	}
	pool := open(t, t.TempDir(), t.TempDir())
	special, err := pool.TakeWith([]uint32{65536, 70000})
	if err != nil {
		t.Fatal(err)
	}
	pool.Release(special.First)
	if _, err := special.Namespace.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the namespace is kept: %v", err)
	}
	ordinary := take(t, pool)
	if _, err := ordinary.Namespace.Stat(); err != nil {
		t.Error(err)
	}
}
