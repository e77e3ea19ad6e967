package cluster

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster/view"
)

// The Secret secretVersions has no contents. Its annotations say which version each replica has
// written last: VERSION SECONDS, the latter since 1970. A replica writes that before it answers a
// change, and reads all of them before it answers a list, which it answers once its watch has
// brought the newest. A consistent list would say the same, but takes the API server up to 100 ms,
// and a change seldom comes alone.
const (
	secretVersions    = "sandbox-versions"
	annotationVersion = "version.sandbox.internal/" // followed by the replica
	// announcedFor is how long the version of a replica is kept that changes nothing any more:
	// every watch has brought it by then.
	announcedFor = time.Hour
	// freshTimeout is how long a read waits for the API server, and then for the watch.
	freshTimeout = 2 * time.Second
)

// announcer announces the versions that a replica writes, one after the other: while one
// announcement is under way, those that come wait for the next one together.
type announcer struct {
	replica string

	mu        sync.Mutex
	want      uint64        // the newest version that was written
	announced uint64        // up to which they are announced
	running   chan struct{} // closed when the announcement under way is over; nil when there is none
}

// announce returns when the other replicas can know of a version. A failure is logged only: the
// change is done all the same.
func (c *Cluster) announce(ctx context.Context, version uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), view.CallTimeout)
	defer cancel()
	a := &c.announcer
	a.mu.Lock()
	defer a.mu.Unlock()
	a.want = max(a.want, version)
	for a.announced < version && ctx.Err() == nil {
		if under := a.running; under != nil {
			a.mu.Unlock()
			select {
			case <-under:
			case <-ctx.Done():
			}
			a.mu.Lock()
			continue
		}
		under, newest := make(chan struct{}), a.want
		a.running = under
		a.mu.Unlock()
		err := c.writeVersion(ctx, newest)
		a.mu.Lock()
		a.running = nil
		close(under)
		if err != nil {
			c.Logger.Warn().Err(err).Msg("cannot announce a change to the other replicas; their lists may show it later")
			return
		}
		a.announced = max(a.announced, newest)
	}
}

// writeVersion writes the version that this replica has written last.
func (c *Cluster) writeVersion(ctx context.Context, version uint64) error {
	key := annotationVersion + c.announcer.replica
	value := strconv.FormatUint(version, 10) + " " + strconv.FormatInt(c.Clock().Unix(), 10)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: secretVersions}}
	err = c.api.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
	if !apierrors.IsNotFound(err) {
		return err
	}
	secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.Namespace, Name: secretVersions, Labels: map[string]string{view.LabelManagedBy: view.ManagedBy},
		Annotations: map[string]string{key: value},
	}}
	if err = c.api.Create(ctx, secret); apierrors.IsAlreadyExists(err) {
		err = c.api.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
	}
	return err
}

// catchUp waits until this replica's view has every change that a replica has answered before.
// While the API server does not answer, or the watch is behind by more than freshTimeout, the view
// stays what this replica knows.
func (c *Cluster) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	versions, _, err := c.versions(ctx)
	if err != nil {
		return
	}
	newest := uint64(0)
	for _, announced := range versions {
		newest = max(newest, announced.version)
	}
	c.view.AwaitVersion(ctx, newest)
}

// announced is what one replica has announced.
type announced struct {
	version uint64
	at      time.Time
}

// versions returns what replicas have announced, by annotation, and the version of the Secret.
func (c *Cluster) versions(ctx context.Context) (all map[string]announced, of string, err error) {
	var secret metav1.PartialObjectMetadata
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err = c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: secretVersions}, &secret)
	if err != nil {
		return nil, "", client.IgnoreNotFound(err)
	}
	all = make(map[string]announced)
	for key, value := range secret.Annotations {
		if !strings.HasPrefix(key, annotationVersion) {
			continue
		}
		version, at, _ := strings.Cut(value, " ")
		number, _ := strconv.ParseUint(version, 10, 64) // 0, which is no version, for what no replica has written
		seconds, _ := strconv.ParseInt(at, 10, 64)
		all[key] = announced{number, time.Unix(seconds, 0)}
	}
	return all, secret.ResourceVersion, nil
}

// dropVersions removes what replicas have announced that change nothing any more.
func (c *Cluster) dropVersions(ctx context.Context) error {
	versions, of, err := c.versions(ctx)
	if err != nil {
		return err
	}
	old := make(map[string]any)
	for key, announced := range versions {
		if c.Clock().Sub(announced.at) > announcedFor {
			old[key] = nil
		}
	}
	if len(old) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": old, "resourceVersion": of}})
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: secretVersions}}
	err = c.api.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) {
		return nil // one of them was announced again; the next time will do
	}
	return client.IgnoreNotFound(err)
}
