package box_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// silent is an engine that does not say whose a volume is.
type silent struct{ engine.Engine }

func (silent) VolumeLabels(ctx context.Context, _ string) (map[string]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestVolumesOfASilentEngine: a create waits for an engine that does not answer once, and not for
// each of its volumes.
func TestVolumesOfASilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boxes := box.Unopened(box.Options{Engine: silent{}})
		var spec lifecycle.Spec
		for i := range lifecycle.MaxVolumes {
			name := fmt.Sprint("volume-", i)
			spec.Volumes = append(spec.Volumes, lifecycle.Volume{Name: name, MountPath: "/" + name, ClaimName: name})
		}
		began := time.Now()
		if err := boxes.Admit(t.Context(), spec, lifecycle.CreateOptions{Role: lifecycle.RoleUser}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("Admit took %v", took)
		}
	})
}
