package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// source returns a task as its executor is to have it. It may ask the API server.
type source func(ctx context.Context) (tasks.Task, error)

// errNoSecret: the Secret of a variable cannot be read, or does not have the entry.
var errNoSecret = errors.New("a variable of the task cannot be read")

// secrets has the Secrets that the tasks of one batch name. Each is read once, whatever the number
// of sandboxes, unless an entry is missing.
type secrets struct {
	reader    client.Reader
	namespace string

	mu   sync.Mutex
	read map[string]map[string][]byte
}

// fill returns the task with the values that are in Secrets, by the positions of the variables.
func (s *secrets) fill(task tasks.Task, from map[int]v1alpha1.SecretKeySelector) source {
	return func(ctx context.Context) (tasks.Task, error) {
		if len(from) == 0 {
			return task, nil
		}
		filled := task
		filled.Env = slices.Clone(task.Env)
		for i, where := range from {
			value, err := s.value(ctx, where)
			if err != nil {
				return task, fmt.Errorf("%w: %s: %w", errNoSecret, filled.Env[i].Name, err)
			}
			filled.Env[i].Value = value
		}
		return filled, nil
	}
}

func (s *secrets) value(ctx context.Context, where v1alpha1.SecretKeySelector) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.read[where.Name][where.Key]
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		var secret corev1.Secret
		if err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: where.Name},
			&secret); err != nil {
			return "", err
		}
		if value, ok = secret.Data[where.Key]; !ok {
			return "", fmt.Errorf("there is no entry %s in Secret %s", where.Key, where.Name)
		}
		if s.read == nil {
			s.read = make(map[string]map[string][]byte)
		}
		s.read[where.Name] = secret.Data
	}
	return string(value), nil
}
