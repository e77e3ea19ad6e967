package users_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"sandbox.internal/runtime/oci/users"
	"sandbox.internal/test/wait"
)

// makeNamespace returns this process's: what a range has to do with its namespace is tested with
// the keeper, which makes them.
func makeNamespace([]syscall.SysProcIDMap) (*os.File, error) { return os.Open("/proc/self/ns/user") }

// makers make namespaces for mounts with makeForMounts.
func makers(makeForMounts func([]syscall.SysProcIDMap) (*os.File, error)) users.Makers {
	return users.Makers{
		Mounts:    makeForMounts,
		Container: func(ids []syscall.SysProcIDMap, _ int) (*os.File, error) { return makeNamespace(ids) },
	}
}

func open(t *testing.T, claims, data string) *users.Pool {
	t.Helper()
	pool, err := users.Open(claims, data, makers(makeNamespace))
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

// TestTake: ranges do not overlap, what an earlier process has given away is not given again, and
// what is given back is.
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

// TestTakesWhatWasMadeAhead: no container waits for its namespaces, as long as they do not come
// faster than namespaces are made. For containers that come and go, none for mounts is made, and a
// new one for each container.
func TestTakesWhatWasMadeAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forMounts, ofContainers := 0, map[*os.File]bool{} // a container has it
		var mu sync.Mutex
		pool, err := users.Open(t.TempDir(), t.TempDir(), users.Makers{
			Mounts: func(ids []syscall.SysProcIDMap) (*os.File, error) {
				forMounts++
				return makeNamespace(ids)
			},
			Container: func(ids []syscall.SysProcIDMap, owner int) (*os.File, error) {
				if ids[0].HostID != owner {
					t.Errorf("user %d is to own the namespace of the range at %d", owner, ids[0].HostID)
				}
				made, err := makeNamespace(ids)
				mu.Lock()
				defer mu.Unlock()
				ofContainers[made] = false
				return made, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		const ahead, few = 8, 4
		// container takes a range and both namespaces, and expects them to be there.
		container := func() int {
			first := take(t, pool).First
			synctest.Wait()
			mu.Lock()
			before := maps.Clone(ofContainers)
			mu.Unlock()
			own, err := pool.TakeContainer(first, nil)
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if _, ahead := before[own]; !ahead {
				t.Error("a container waits for its own namespace")
			}
			if ofContainers[own] {
				t.Error("two containers have one namespace")
			}
			ofContainers[own] = true
			if err := own.Close(); err != nil {
				t.Error(err)
			}
			return first
		}
		pool.Prepare()
		synctest.Wait()
		if forMounts != ahead || len(ofContainers) != ahead {
			t.Fatalf("%d and %d are made ahead, want %d of each", forMounts, len(ofContainers), ahead)
		}
		seen := map[int]bool{}
		for taken := 1; taken <= 5*few; taken++ {
			first := container()
			synctest.Wait()
			if seen[first] {
				t.Errorf("the range at %d is given twice", first)
			}
			seen[first] = true
			if want := ahead + taken/few*few; forMounts != want || len(ofContainers) != want {
				t.Errorf("%d and %d are made when %d were taken, want %d of each", forMounts, len(ofContainers), taken, want)
			}
		}
		had := forMounts
		for range 5 * ahead {
			pool.Release(container())
			synctest.Wait()
		}
		if forMounts != had {
			t.Errorf("%d are made for mounts of containers that came and went", forMounts-had)
		}
	})
}

// TestContainersNamespaceRefused: what the kernel does not let be made is reported to the container
// that needs it, and nothing else is kept from being made ahead.
func TestContainersNamespaceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, forMounts := errors.New("refused"), 0
		pool, err := users.Open(t.TempDir(), t.TempDir(), users.Makers{
			Mounts: func(ids []syscall.SysProcIDMap) (*os.File, error) {
				forMounts++
				return makeNamespace(ids)
			},
			Container: func([]syscall.SysProcIDMap, int) (*os.File, error) { return nil, refused },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		pool.Prepare()
		synctest.Wait()
		if forMounts != 8 {
			t.Errorf("%d are made ahead for mounts, want 8", forMounts)
		}
		if _, err := pool.TakeContainer(take(t, pool).First, nil); !errors.Is(err, refused) {
			t.Errorf("TakeContainer returns %v, want %v", err, refused)
		}
		synctest.Wait()
	})
}

// TestGivenBackWhileOneIsMade: no more namespaces are kept than are needed.
func TestGivenBackWhileOneIsMade(t *testing.T) {
	const kept = 8
	ahead := false
	made, goOn := make(chan struct{}), make(chan struct{})
	pool, err := users.Open(t.TempDir(), t.TempDir(), makers(func(ids []syscall.SysProcIDMap) (*os.File, error) {
		namespace, err := makeNamespace(ids)
		if ahead {
			made <- struct{}{}
			<-goOn
		}
		return namespace, err
	}))
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
	wait.Until(t, fmt.Sprintf("%d namespaces are kept", 2*kept), func() bool { return descriptors() == before+2*kept },
		func() any { return descriptors() - before })
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

// TestServices: services on one host have ids of their own, also after a restart, until they are
// released or their data is gone.
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
	if _, err := users.Open(claims, t.TempDir(), makers(makeNamespace)); err == nil {
		t.Error("more services have ids than there are blocks")
	}
	if err := users.ReleaseBlock(filepath.Join(claims, "missing"), one); err != nil {
		t.Errorf("release without any claim: %v", err)
	}
}

// TestBeyond: ids beyond a range take the place of its last ones, and no other container gets a
// namespace that has them.
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
