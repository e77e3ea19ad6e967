package manager

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"sandbox.internal/runtime/kube/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// noPools is what batches get that ask for a Pool while nothing keeps Pools.
type noPools struct{}

func (noPools) Allocate(_ context.Context, b *v1alpha1.BatchSandbox) (int, error) {
	return 0, fmt.Errorf("Pool %s: %w", b.Spec.PoolRef, batch.ErrNoPool)
}

func (noPools) Release(context.Context, *v1alpha1.BatchSandbox, []int) error { return nil }

// noTasks is what batches get that ask for tasks while nothing runs them.
type noTasks struct{}

func (noTasks) Sync(_ context.Context, _ *v1alpha1.BatchSandbox, pods []*corev1.Pod) ([]batch.TaskState, error) {
	states := make([]batch.TaskState, len(pods))
	for i := range states {
		states[i] = batch.TaskState{Phase: batch.TaskUnknown, Message: "this controller runs no tasks"}
	}
	return states, nil
}

func (noTasks) Forget(string, string) {}

func (m *Manager) pools(*batch.Waker) batch.Pools { return noPools{} }

func (m *Manager) tasks(*batch.Waker) batch.Tasks { return noTasks{} }
