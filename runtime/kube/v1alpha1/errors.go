package v1alpha1

import (
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Why a batch gets no pods from its Pool, for errors.Is. Waiting helps against the first alone.
var (
	// ErrNoPool means that the Pool that the batch names does not exist.
	ErrNoPool = errors.New("there is no such Pool")
	// ErrPoolEnds means that the Pool is being deleted and gives no more pods.
	ErrPoolEnds = errors.New("the Pool is being deleted and gives no more pods")
	// ErrPoolTooSmall means that the batch asks for more pods than the Pool may ever have.
	ErrPoolTooSmall = errors.New("the Pool never has as many pods")
	// ErrInvalidPool means that the Pool's template breaks a rule, so that it makes no pods, or
	// that it makes others by now than the batch requires (AnnotationRequires).
	ErrInvalidPool = errors.New("the Pool cannot be used")
	// ErrTooLarge means that the API server does not take the names of all pods that the batch asks
	// for, beside what its annotations hold already.
	ErrTooLarge = errors.New("the BatchSandbox has no room for the names of its pods")
)

// etcdTooLarge is etcd's refusal of an object of more than 1.5 MiB (--max-request-bytes), which the
// API server passes on as an error without a reason.
const etcdTooLarge = "etcdserver: request is too large"

// IsTooLarge reports whether the API server, or etcd, has refused an object because of its size.
func IsTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	if strings.Contains(status.Status().Message, etcdTooLarge) {
		return true
	}
	if !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseType(field.ErrorTypeTooLong)
	})
}
