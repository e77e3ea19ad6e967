package pool

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// server is what an API server is to the ledger: the latest version of every batch, and writes that
// may arrive late.
type server struct {
	version int
	batches map[string]*v1alpha1.BatchSandbox
	late    []write
	owners  map[string]types.UID // of pods, for ever: none may ever have two
}

type write struct {
	batch string
	base  string
	pods  []string
}

func (s *server) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

// apply writes an allocation if the base is still the latest version.
func (s *server) apply(t *rapid.T, w write) (*v1alpha1.BatchSandbox, bool) {
	batch := s.batches[w.batch]
	if batch == nil || batch.ResourceVersion != w.base {
		return nil, false
	}
	batch = batch.DeepCopy()
	allocation, _ := batch.Allocation()
	allocation.Pods = append(allocation.Pods, w.pods...)
	batch.SetAllocation(allocation)
	batch.ResourceVersion = s.next()
	s.batches[w.batch] = batch
	for _, pod := range w.pods {
		if owner, ok := s.owners[pod]; ok && owner != batch.UID {
			t.Fatalf("pod %s was %s's and is given to %s", pod, owner, batch.UID)
		}
		s.owners[pod] = batch.UID
	}
	return batch.DeepCopy(), true
}

// bump changes the version of a batch, as fence and resolveUncertainWrite do.
func (s *server) bump(name string) *v1alpha1.BatchSandbox {
	batch := s.batches[name].DeepCopy()
	batch.ResourceVersion = s.next()
	s.batches[name] = batch
	return batch.DeepCopy()
}

func readyPod(name, version string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name),
			ResourceVersion: version, Labels: map[string]string{v1alpha1.LabelPool: "p"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
				Status: corev1.ConditionTrue}}},
	}
}
