// Dialogs and menus are elements of the browser: focus, Escape and the layer above the page are its
// work.

import { type ReactNode, useEffect, useId, useRef } from "react";

interface DialogProps {
  title: ReactNode;
  onClose: () => void;
  children: ReactNode;
  /** Buttons at the lower end. */
  foot?: ReactNode;
  /** "drawer" is a panel at the right side. */
  kind?: "dialog" | "drawer";
}

/** A dialog, open as long as it is rendered. */
export function Dialog({ title, onClose, children, foot, kind = "dialog" }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const dialog = ref.current!;
    if (!dialog.open) dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog
      ref={ref}
      className={`dialog ${kind}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === ref.current) onClose();
      }}
    >
      <div className="dialog-head">
        <h2 id={heading} className="grow truncate">
          {title}
        </h2>
        <button type="button" className="button quiet small" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </div>
      <div className="dialog-body">{children}</div>
      {foot && <div className="dialog-foot">{foot}</div>}
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  /** What happens then. */
  children: ReactNode;
  /** The label of the button that does it. */
  action: string;
  cancel?: string;
  isDanger?: boolean;
  isPending?: boolean;
  onConfirm: () => void;
  onClose: () => void;
}

/** A question before an action that cannot be undone. */
export function ConfirmDialog({ title, children, action, cancel = "Cancel", isDanger = false, isPending = false, onConfirm, onClose }: ConfirmProps) {
  return (
    <Dialog
      title={title}
      onClose={onClose}
      foot={
        <>
          <button type="button" className="button" onClick={onClose} autoFocus>
            {cancel}
          </button>
          <button type="button" className={isDanger ? "button danger" : "button primary"} disabled={isPending} onClick={onConfirm}>
            {action}
          </button>
        </>
      }
    >
      <div className="stack">{children}</div>
    </Dialog>
  );
}

export interface MenuAction {
  label: string;
  onSelect: () => void;
  disabled?: boolean;
  /** Why it is disabled, or what it does. */
  hint?: string;
}

/** A button that opens a list of actions. */
export function Menu({ label, actions, className = "button" }: { label: ReactNode; actions: MenuAction[]; className?: string }) {
  const id = useId();
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const place = () => {
    const box = button.current!.getBoundingClientRect();
    const list = menu.current!;
    list.style.top = `${box.bottom + 4}px`;
    list.style.left = `${Math.max(8, Math.min(box.right, innerWidth - 8) - list.offsetWidth)}px`;
  };
  const move = (step: number) => {
    const items = [...menu.current!.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
    const at = items.indexOf(document.activeElement as HTMLButtonElement);
    items[(at + step + items.length) % items.length]?.focus();
  };
  return (
    <>
      <button ref={button} type="button" className={className} popoverTarget={id} aria-haspopup="menu">
        {label}
      </button>
      <div
        ref={menu}
        id={id}
        popover="auto"
        role="menu"
        className="menu"
        onToggle={(event) => {
          if (event.newState === "open") {
            place();
            move(1);
          }
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            event.preventDefault();
            move(event.key === "ArrowDown" ? 1 : -1);
          }
        }}
      >
        {actions.map((action) => (
          <button
            key={action.label}
            type="button"
            role="menuitem"
            className="menu-item"
            disabled={action.disabled ?? false}
            title={action.hint}
            onClick={() => {
              menu.current!.hidePopover();
              action.onSelect();
            }}
          >
            {action.label}
          </button>
        ))}
      </div>
    </>
  );
}
