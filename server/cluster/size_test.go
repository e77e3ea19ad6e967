package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
)

// TestSizeOfASandbox: what a client gives leaves room in etcd for the record of the sandbox's end,
// and it can be deleted whatever it holds.
func TestSizeOfASandbox(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	create := func(change func(*lifecycle.Spec)) error {
		spec := sampleSpec()
		change(&spec)
		_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", Role: lifecycle.RoleUser})
		return err
	}
	variables := func(n int) func(*lifecycle.Spec) {
		return func(s *lifecycle.Spec) {
			s.Env = make(map[string]string, n)
			for i := range n {
				s.Env[fmt.Sprintf("A%05d", i)] = "x"
			}
		}
	}
	refuses(t, create(variables(10400)), lifecycle.KindInvalid, "env", "must have at most 524288 bytes as JSON", "10400 variables")
	must(t, create(variables(2000)))
	refuses(t, create(func(s *lifecycle.Spec) { // JSON has six bytes for each of these
		s.Entrypoint = []string{"echo", strings.Repeat("<", 100_000)}
	}), lifecycle.KindInvalid, "entrypoint", "at most 245760 bytes together as JSON")

	sandbox, err := c.Create(t.Context(), sampleSpec(), lifecycle.CreateOptions{Owner: "alice", Role: lifecycle.RoleUser})
	must(t, err)
	fill(t, c, sandbox.ID)
	must(t, c.Delete(t.Context(), sandbox.ID))
}

// fill makes a sandbox's metadata as large as they may be, to the byte.
func fill(t *testing.T, c *cluster.Cluster, id string) {
	t.Helper()
	size := lifecycle.MaxMetadataValue
	for n := 0; size > 0; n++ {
		value := strings.Repeat("x", size)
		if _, err := c.UpdateMetadata(t.Context(), id, map[string]*string{fmt.Sprintf("k%03d", n): &value}); err != nil {
			refuses(t, err, lifecycle.KindInvalid, "metadata")
			size /= 2
		}
	}
}
