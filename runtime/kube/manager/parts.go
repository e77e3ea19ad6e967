package manager

import (
	"context"
	"fmt"

	"sandbox.internal/runtime/kube/batch"
	"sandbox.internal/runtime/kube/task"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// noPools is what batches get that ask for a Pool while nothing keeps Pools.
type noPools struct{}

func (noPools) Allocate(_ context.Context, b *v1alpha1.BatchSandbox) (int, error) {
	return 0, fmt.Errorf("Pool %s: %w", b.Spec.PoolRef, batch.ErrNoPool)
}

func (noPools) Release(context.Context, *v1alpha1.BatchSandbox, []int) error { return nil }

func (m *Manager) pools(*batch.Waker) batch.Pools { return noPools{} }

// tasks makes the part that runs tasks, which ends with the manager.
func (m *Manager) tasks(waker *batch.Waker) (batch.Tasks, error) {
	t := task.New(waker.Wake)
	return t, m.Add(t)
}
