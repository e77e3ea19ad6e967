// Package executor is how the controller proves itself to the task-executors in its pods
// (internal/tasks, Prove), and to the execds that wait for a claim (internal/claims): no pod holds
// a secret that opens another one.
package executor

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// Keys has the signing key of each namespace. It keeps it in a Secret there, which it makes when
// there is none. Methods may be called concurrently.
type Keys struct {
	reader client.Reader
	writer client.Writer
	now    func() time.Time

	mu   sync.Mutex
	keys map[string]*known
}

// known is the key of a namespace.
type known struct {
	key  ed25519.PrivateKey
	seen time.Time // when its Secret was there
}

// seenFor is how long a Secret is taken to be there after it was seen.
const seenFor = time.Minute

// NewKeys returns Keys that read and write Secrets with these clients. The reader must not be a
// cache: the controller may not list Secrets.
func NewKeys(reader client.Reader, writer client.Writer, now func() time.Time) *Keys {
	return &Keys{reader: reader, writer: writer, now: now, keys: make(map[string]*known)}
}

// Equip makes the task-executor of a pod that is about to be created accept this controller's
// proofs and no others, and a container that waits for a claim only this controller's claims; the
// egress sidecar beside that gets a token of its own. A pod without either stays as it is.
func (k *Keys) Equip(ctx context.Context, pod *corev1.Pod) error {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name != v1alpha1.ContainerTaskExecutor {
				continue
			}
			if err := k.equip(ctx, pod.Namespace, &list[i], v1alpha1.EnvExecutorKey,
				v1alpha1.EnvExecutorPod); err != nil {
				return err
			}
		}
	}
	if waiting := v1alpha1.WaitingContainer(&pod.Spec); waiting != nil {
		if sidecar := v1alpha1.EgressSidecar(&pod.Spec); sidecar != nil {
			token, err := k.SidecarToken(ctx, pod.Namespace, pod.Name)
			if err != nil {
				return err
			}
			sidecar.Env = append(slices.DeleteFunc(sidecar.Env, func(v corev1.EnvVar) bool {
				return v.Name == v1alpha1.EnvEgressToken
			}), corev1.EnvVar{Name: v1alpha1.EnvEgressToken, Value: token})
		}
		return k.equip(ctx, pod.Namespace, waiting, claims.KeyVariable, claims.PodVariable)
	}
	return nil
}

// equip gives a container the public key and the UID of its pod, in the variables of these names.
func (k *Keys) equip(ctx context.Context, namespace string, c *corev1.Container, keyName,
	podName string) error {
	key, err := k.key(ctx, namespace)
	if err == nil {
		err = k.keep(ctx, namespace)
	}
	if err != nil {
		return err
	}
	c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool {
		return v.Name == keyName || v.Name == podName
	})
	c.Env = append(c.Env,
		corev1.EnvVar{Name: keyName, Value: tasks.FormatKey(key.Public().(ed25519.PublicKey))},
		corev1.EnvVar{Name: podName, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
		}},
	)
	return nil
}

// SidecarToken returns the token of the egress sidecar in a pod that waits for a claim.
func (k *Keys) SidecarToken(ctx context.Context, namespace, pod string) (string, error) {
	key, err := k.key(ctx, namespace)
	if err != nil {
		return "", err
	}
	return v1alpha1.SidecarToken(key.Seed(), namespace, pod), nil
}

// SignClaim signs a claim of a pod (claims.Prove).
func (k *Keys) SignClaim(ctx context.Context, namespace string, pod types.UID, token,
	digest string) (string, error) {
	key, err := k.key(ctx, namespace)
	if err != nil {
		return "", err
	}
	return claims.Prove(key, string(pod), token, digest), nil
}

// Signer returns what makes the proofs for one pod, for tasks.Client.
func (k *Keys) Signer(namespace string,
	pod types.UID) func(ctx context.Context, challenge string) (string, error) {
	return func(ctx context.Context, challenge string) (string, error) {
		key, err := k.key(ctx, namespace)
		if err != nil {
			return "", err
		}
		return tasks.Prove(key, string(pod), challenge), nil
	}
}

// key returns the key of a namespace.
func (k *Keys) key(ctx context.Context, namespace string) (ed25519.PrivateKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known := k.keys[namespace]; known != nil {
		return known.key, nil
	}
	seed, err := k.seed(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("the key for task-executors: Secret %s: %w",
			v1alpha1.SecretExecutors, err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil,
			fmt.Errorf(
				"the key for task-executors: Secret %s: entry %s must have %d bytes, and has %d",
				v1alpha1.SecretExecutors, v1alpha1.EntryExecutorKey, ed25519.SeedSize, len(seed))
	}
	key := ed25519.NewKeyFromSeed(seed)
	k.keys[namespace] = &known{key, k.now()}
	return key, nil
}

// keep makes the Secret of a known key again when it was deleted, as that of a namespace that was
// deleted and made again: the next leader needs the key for the pods that this one equips.
func (k *Keys) keep(ctx context.Context, namespace string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.keys[namespace]
	if k.now().Sub(known.seen) < seenFor {
		return nil
	}
	var secret metav1.PartialObjectMetadata
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := k.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.SecretExecutors}, &secret)
	if apierrors.IsNotFound(err) {
		err = k.create(ctx, namespace, known.key.Seed())
	}
	if err != nil {
		return fmt.Errorf("the key for task-executors: Secret %s: %w", v1alpha1.SecretExecutors, err)
	}
	known.seen = k.now()
	return nil
}

// seed reads the Secret, or makes it. Of several controllers that make it one succeeds, and the
// others read it.
func (k *Keys) seed(ctx context.Context, namespace string) ([]byte, error) {
	var secret corev1.Secret
	name := client.ObjectKey{Namespace: namespace, Name: v1alpha1.SecretExecutors}
	err := k.reader.Get(ctx, name, &secret)
	if !apierrors.IsNotFound(err) {
		return secret.Data[v1alpha1.EntryExecutorKey], err
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return nil, err
	}
	err = k.create(ctx, namespace, seed)
	if apierrors.IsAlreadyExists(err) {
		err = k.reader.Get(ctx, name, &secret)
		seed = secret.Data[v1alpha1.EntryExecutorKey]
	}
	return seed, err
}

// create makes the Secret.
func (k *Keys) create(ctx context.Context, namespace string, seed []byte) error {
	immutable := true
	return k.writer.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1alpha1.SecretExecutors,
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
		},
		Immutable: &immutable,
		Data:      map[string][]byte{v1alpha1.EntryExecutorKey: seed},
	})
}
